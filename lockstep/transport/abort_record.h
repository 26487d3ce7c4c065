// The abort record in memory that several ranks share: the first error that ends a group, for all ranks to repeat.
// Any thread of any rank may call; nothing here blocks.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/transport/arena_layout.h"

namespace lockstep {

// Whether this error is the first; later ones are dropped.
bool record_abort(arena::AbortRecord& record, const Error& error) noexcept;
inline bool has_abort(const arena::AbortRecord& record) { return record.first.load(std::memory_order_acquire) != 0; }
// Throws what was recorded. REQUIRES: has_abort().
[[noreturn]] void throw_abort(const arena::AbortRecord& record, int rank);

}  // namespace lockstep
