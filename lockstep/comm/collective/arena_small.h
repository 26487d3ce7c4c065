// The small way of the ArenaEngine: what a rank gives to a collective fits into its slot, and each rank combines all
// slots for itself. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

// Whether it goes this way; the same on all ranks.
bool is_small(const Collective& collective, int size);
// Puts what this rank gives into its slot.
void write_small(const Collective& collective, int rank, int size, arena::Slot& slot);
// Makes the output. inputs: scratch, one entry a rank. REQUIRES: all ranks have posted this collective.
void finish_small(const Arena& arena, const Collective& collective, std::uint64_t sequence,
                  std::span<const std::byte*> inputs);

}  // namespace lockstep::internal
