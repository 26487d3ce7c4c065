// The errors of ranks that wait in an arena, and the reports of waits that go on: they name the missing ranks. Nothing
// blocks.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

// The error of a wait in this collective, or the report of one that goes on, which names the missing ranks and where
// they were last.
Error explain_stall(const Arena& arena, const Signature& signature, const WaitFailure& stall);

}  // namespace lockstep::internal
