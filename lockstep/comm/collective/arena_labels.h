// The labels of collectives in an arena: each rank's slot holds the name of its collective, and what failed on the rank
// before. Nothing blocks.
#pragma once

#include <cstdint>

#include "lockstep/base/failure_note.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/mismatch.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

// Puts the text of a name, and what failed on this rank before, into its slot.
void write_label(const Arena& arena, std::uint64_t sequence, std::uint64_t name, const FailureNote& note);
// What a rank's slot says of its collective.
CallSide side_of(const Arena& arena, int peer, std::uint64_t sequence);

}  // namespace lockstep::internal
