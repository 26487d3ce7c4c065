// Seeds the random generators of this process: torch's default ones of all devices, and std::rand(). Nothing is
// communicated. In lockstep mode (ddp/options.h) each shard has its own generators, which draw the same numbers at any
// number of ranks.
#pragma once

#include <cstdint>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// The same numbers on all ranks.
void seed_all(std::uint64_t seed);
// Different numbers on each rank, as dropout needs; the same in each run with this world size. Rank 0 gets `seed`.
void seed_all(std::uint64_t seed, const ProcessGroup& group);

}  // namespace lockstep
