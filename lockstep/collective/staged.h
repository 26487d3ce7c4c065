// The staged way of the ArenaEngine: operands that lie anywhere pass through the staging buffers in cache-sized chunks.
//
// Chunk c uses staging buffer c mod 3 of every rank. A rank fills its buffer for chunk c + 1 while others still reduce
// chunk c. It may: the buffer was last used for chunk c - 2, and whoever has filled chunk c has done all it had to do
// with chunk c - 2.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/collective/collective.h"
#include "lockstep/transport/arena.h"

namespace lockstep {

// What one staged collective needs. `chunk` counts chunks over all collectives of the group and is advanced.
struct StagedCall {
  const Arena& arena;
  const Collective& collective;
  std::uint32_t& chunk;
  Deadline deadline;
  std::function<Error(const Stall&)> explain;
};

// Blocks until this rank's output is complete. All ranks have posted this collective. Throws as Engine::run does.
void run_staged(StagedCall& call);

}  // namespace lockstep
