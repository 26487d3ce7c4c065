// Moves a thread off a core that it shares with a rank it waits for, where another core has fewer ranks. The kernel
// leaves two threads that wake each other on one core: each has run a moment ago, so neither is worth moving.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::internal {

// The core to go to, or -1 to stay. cores: of all ranks, this one's at `rank`, as arena::RankControl::core has them;
// allowed: cores from 0. Only the higher one of two ranks moves, and only to where there will be fewer ranks than here.
// Pure.
int emptier_core(std::span<const std::uint32_t> cores, int rank, std::span<const int> allowed);

// The cores that the calling thread may run on, as many of them as `memory` has room for.
std::span<const int> allowed_cores(std::span<int> memory);
// Puts the calling thread there, and leaves the cores that it may run on as they are. Whether it worked.
bool move_to_core(int core);

}  // namespace lockstep::internal
