#include "lockstep/comm/transport/cpu_placement.h"

#include <sched.h>

#include <algorithm>

namespace lockstep::internal {

int emptier_core(std::span<const std::uint32_t> cores, int rank, std::span<const int> allowed) {
  const std::uint32_t here = cores[static_cast<std::size_t>(rank)];
  const auto on = [&](std::uint32_t core) { return std::ranges::count(cores, core); };
  const auto below = std::ranges::find(cores, here) - cores.begin();
  if (here == 0 || below == rank) return -1;  // the lowest of them stays
  int best = -1;
  for (const int core : allowed) {
    const auto ranks = on(static_cast<std::uint32_t>(core) + 1);
    if (ranks + 2 <= on(here) && (best < 0 || ranks < on(static_cast<std::uint32_t>(best) + 1))) best = core;
  }
  return best;
}

std::span<const int> allowed_cores(std::span<int> memory) {
  cpu_set_t set;
  std::size_t count = 0;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  for (int core = 0; core < CPU_SETSIZE && count < memory.size(); ++core) {
    if (CPU_ISSET(core, &set)) memory[count++] = core;
  }
  return memory.first(count);
}

bool move_to_core(int core) {
  cpu_set_t before, one;
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return false;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  const bool moved = ::sched_setaffinity(0, sizeof one, &one) == 0;
  return ::sched_setaffinity(0, sizeof before, &before) == 0 && moved;
}

}  // namespace lockstep::internal
