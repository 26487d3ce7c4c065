// How `count` elements are divided among n ranks: contiguous slices in rank order, in whole cache lines of 64 elements
// except at the end, as even as that allows. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::internal {

struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
};

inline Slice slice_of(std::size_t count, int ranks, int rank) {
  constexpr std::size_t kUnit = 64;
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t part = (count / n + (count % n != 0) + kUnit - 1) / kUnit * kUnit;
  const std::size_t begin = std::min(count, part * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + part)};
}

}  // namespace lockstep::internal
