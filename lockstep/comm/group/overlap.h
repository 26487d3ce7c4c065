// Which tensors lie over each other in memory, and which elements of one tensor do. Pure; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// Whether two elements of a tensor share memory: it is expanded, or its strides fold it. Exact, as of overlap().
bool overlaps_itself(const at::Tensor& tensor);
// Whether two dense tensors share a byte; slices that only lie between each other's elements do not. Exact, but for
// strides so contrived that the search gives up: these count as overlapping.
bool overlap(const at::Tensor& left, const at::Tensor& right);

// The bytes from the first to the last element of a tensor, or a segment, with its place in the list.
struct MemorySpan {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::size_t index = 0;
};

// Spans of a list, by address; empty ones are left out. The vector is the caller's, to be used again.
void list_spans(std::span<const Segment> segments, std::vector<MemorySpan>& spans);
// Two tensors of a list that overlap, the lower number first; nothing if they are all apart.
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(at::TensorList tensors, std::vector<MemorySpan>& spans);

// How many bytes of a segment lie in spans that are by address and apart.
std::size_t bytes_within(const Segment& segment, const std::vector<MemorySpan>& spans);
// Whether `part` is, byte for byte, the memory of `whole` from an offset on; both lists are read as if joined.
bool is_part_of(std::span<const Segment> part, std::span<const Segment> whole, std::size_t offset);

}  // namespace lockstep::internal
