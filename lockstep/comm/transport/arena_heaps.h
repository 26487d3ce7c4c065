// The segments of an arena, in which the tensors of its ranks lie. Groups that are split off an arena's group share
// them, and keep them mapped: such a group reserves memory for its control and staging only. A value.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/transport/arena_heap.h"

namespace lockstep::internal {

class ArenaHeaps {
 public:
  // segments: of all ranks, one after the other, each segment_bytes long; mine: of this rank, in its segment.
  ArenaHeaps(std::byte* segments, std::size_t segment_bytes, int ranks, std::shared_ptr<ArenaHeap> mine);
  // For a group of some of the ranks, in this order.
  ArenaHeaps of(const std::vector<int>& ranks) const;

  int ranks() const { return static_cast<int>(segments_.size()); }
  std::byte* segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }
  std::size_t segment_bytes() const { return segment_bytes_; }
  // The offset of a run of bytes in a rank's segment, if it lies there.
  std::optional<std::size_t> offset_in(int rank, const std::byte* data, std::size_t bytes) const;
  const std::shared_ptr<ArenaHeap>& mine() const { return mine_; }

 private:
  std::vector<std::byte*> segments_;  // by rank
  std::size_t segment_bytes_;
  std::shared_ptr<ArenaHeap> mine_;  // keeps the mapping alive
};

}  // namespace lockstep::internal
