#include "lockstep/comm/transport/arena_heaps.h"

#include <utility>

namespace lockstep::internal {

ArenaHeaps::ArenaHeaps(std::byte* segments, std::size_t segment_bytes, int ranks, std::shared_ptr<ArenaHeap> mine)
    : segment_bytes_(segment_bytes), mine_(std::move(mine)) {
  for (int rank = 0; rank < ranks; ++rank) {
    segments_.push_back(segments + static_cast<std::size_t>(rank) * segment_bytes);
  }
}

ArenaHeaps ArenaHeaps::of(const std::vector<int>& ranks) const {
  ArenaHeaps heaps = *this;
  heaps.segments_.clear();
  for (const int rank : ranks) heaps.segments_.push_back(segment(rank));
  return heaps;
}

std::optional<std::size_t> ArenaHeaps::offset_in(int rank, const std::byte* data, std::size_t bytes) const {
  const std::byte* begin = segment(rank);
  if (data < begin || bytes > segment_bytes_) return std::nullopt;
  const auto offset = static_cast<std::size_t>(data - begin);
  if (offset > segment_bytes_ - bytes) return std::nullopt;
  return offset;
}

}  // namespace lockstep::internal
