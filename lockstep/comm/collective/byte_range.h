// Ranges of bytes of a collective's operand and output, as its plans name them. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/slice.h"

namespace lockstep::internal {

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t bytes() const { return end - begin; }
};

inline std::size_t bytes_of(const std::vector<ByteRange>& ranges) {
  std::size_t bytes = 0;
  for (const ByteRange& each : ranges) bytes += each.bytes();
  return bytes;
}

// Of `count` elements.
inline std::size_t data_bytes(const Collective& collective) {
  return collective.count * element_size(collective.dtype);
}

// One of several slices of the data.
inline ByteRange slice_bytes(const Collective& collective, int slices, int index) {
  const Slice slice = slice_of(collective.count, slices, index);
  const std::size_t element = element_size(collective.dtype);
  return {slice.begin * element, slice.end * element};
}

// A rank's part of a list with `count` elements for each, such as all_gather's output and reduce_scatter's input.
inline ByteRange part_bytes(const Collective& collective, int rank) {
  const std::size_t begin = data_bytes(collective) * static_cast<std::size_t>(rank);
  return {begin, begin + data_bytes(collective)};
}

}  // namespace lockstep::internal
