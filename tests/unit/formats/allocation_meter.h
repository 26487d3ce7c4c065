// How much a piece of code allocates at most at any one time. Its source replaces the program's operator new.
// For one thread.
#pragma once

#include <cstddef>

namespace lockstep {

extern std::size_t g_live_bytes;
extern std::size_t g_peak_bytes;

template <class Action>
std::size_t peak_allocation_of(Action action) {
  const std::size_t before = g_live_bytes;
  g_peak_bytes = before;
  action();
  return g_peak_bytes - before;
}

}  // namespace lockstep
