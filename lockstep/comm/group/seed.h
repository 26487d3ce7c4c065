// Seeds whatever draws random numbers in this process: torch's default generators of all devices, and std::rand().
// Nothing is communicated. In lockstep mode (ddp/options.h) shards have generators of their own, which make the same
// numbers at any number of ranks.
#pragma once

#include <cstdint>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// The same numbers on all ranks.
void seed_all(std::uint64_t seed);
// Other numbers on each rank, as dropout needs them; the same in each run with as many ranks. Rank 0 gets `seed`.
void seed_all(std::uint64_t seed, const ProcessGroup& group);

}  // namespace lockstep
