// What the ranks of an arena know of each other beside data: the labels of their collectives, and the errors and
// reports that name who is missing. Nothing blocks.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"
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
// The error of a wait in this collective, or the report of one that goes on, which names the missing ranks and where
// they were last.
Error explain_stall(const Arena& arena, const Signature& signature, const WaitFailure& stall);

}  // namespace lockstep::internal
