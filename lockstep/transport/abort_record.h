// The abort record in memory that several ranks share: the first error that ends a group, for all ranks to repeat.
// Any thread of any rank may call; nothing here blocks for longer than another rank takes to write its error down.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/transport/arena_layout.h"

namespace lockstep {

// Whether this error is the first; later ones are dropped.
bool record_abort(arena::AbortRecord& record, const Error& error) noexcept;
// Throws what was recorded. REQUIRES: some rank has begun to record.
[[noreturn]] void throw_abort(const arena::AbortRecord& record, int rank);

}  // namespace lockstep
