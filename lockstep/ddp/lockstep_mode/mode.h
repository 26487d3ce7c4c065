// The options of lockstep mode, in which bits do not depend on the number of ranks: see sharded_step.h. A value; the
// same on all ranks.
#pragma once

#include <cstdint>

namespace lockstep {

struct LockstepMode {
  int shards = 0;  // 0: off; else a power of two, and a multiple of the number of ranks
  std::uint64_t seed = 0;
  // That a shard computes with, whatever OMP_NUM_THREADS, the launcher or at::set_num_threads() say. Bits depend on it.
  int threads = 1;
};

}  // namespace lockstep
