// The inputs of a loader: a dataset and an order.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace lockstep {

// Any type with a number of samples that makes a batch, of any type, of some of them. get_batch() is called by several
// threads at once.
template <class T>
concept BatchDataset = requires(const T& dataset, std::span<const std::int64_t> indices) {
  { dataset.size() } -> std::convertible_to<std::size_t>;
  requires !std::is_void_v<decltype(dataset.get_batch(indices))>;
};

// Any range of dataset indices with a size: size() is exactly the number of indices between begin() and end(). A
// std::vector<std::int64_t> is one.
template <class T>
concept IndexSampler = requires(T& sampler) {
  { *sampler.begin() } -> std::convertible_to<std::int64_t>;
  { sampler.begin() != sampler.end() } -> std::convertible_to<bool>;
  { sampler.size() } -> std::convertible_to<std::size_t>;
};

}  // namespace lockstep
