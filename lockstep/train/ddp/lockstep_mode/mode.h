// The values of lockstep mode, in which bits do not depend on the number of ranks: see sharded_step.h.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

class ProcessGroup;

// The same on all ranks.
struct LockstepMode {
  int shards = 0;  // 0: off; else a power of two, and a multiple of the number of ranks
  std::uint64_t seed = 0;
  // Of a shard, regardless of OMP_NUM_THREADS, the launcher and at::set_num_threads(). Bits depend on it.
  int threads = 1;
};

struct Shard {
  int index = 0;  // in the global batch, from 0
  int count = 1;  // over all ranks
  std::uint64_t step = 0;
};

// Belongs in checkpoints, beside model and optimizer.
struct LockstepState {
  std::uint64_t step = 0;  // of the next for_each_shard()
  int shards = 0;
  std::uint64_t seed = 0;
  int threads = 0;              // of a shard; 0: unknown
  std::string arithmetic = {};  // text_of(Arithmetic) of all ranks; empty: unknown
};

// Error{invalid_argument}: "lockstep mode: " and the reason.
Error lockstep_mode_error(const std::string& why);
// Error{invalid_argument} if the mode cannot work with these numbers of shards, ranks and threads.
void check_mode(const LockstepMode& mode, int ranks);

}  // namespace lockstep
