// Sizes of memory in whole pages, cache lines and the like. Pure.
#pragma once

#include <cstddef>

namespace lockstep::internal {

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace lockstep::internal
