// BatchDataset is what a loader reads: anything that knows how many samples it has, and makes a batch of some of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace lockstep {

// get_batch() returns whatever a batch is to the program, and is called by several threads at once.
template <class T>
concept BatchDataset = requires(const T& dataset, std::span<const std::int64_t> indices) {
  { dataset.size() } -> std::convertible_to<std::size_t>;
  requires !std::is_void_v<decltype(dataset.get_batch(indices))>;
};

}  // namespace lockstep
