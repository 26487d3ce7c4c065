// IndexSampler is what a loader draws its order from: anything that yields dataset indices and knows how many.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// size() is exactly the number of indices between begin() and end(). A std::vector<std::int64_t> is one.
template <class T>
concept IndexSampler = requires(T& sampler) {
  { *sampler.begin() } -> std::convertible_to<std::int64_t>;
  { sampler.begin() != sampler.end() } -> std::convertible_to<bool>;
  { sampler.size() } -> std::convertible_to<std::size_t>;
};

}  // namespace lockstep
