// The abort record in memory that ranks share: the first error that ends their group, which all of them throw.
// Any thread of any rank may call; nothing here blocks.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/arena_layout.h"

namespace lockstep::internal {

// Whether this error is the first; later ones are dropped.
bool record_abort(arena::AbortRecord& record, const Error& error) noexcept;
inline bool has_abort(const arena::AbortRecord& record) { return record.first.load(std::memory_order_acquire) != 0; }
// What was recorded, for `rank` of `ranks`; Error{corrupt_data} in its place if no rank can have written it. REQUIRES:
// has_abort().
Error read_abort(const arena::AbortRecord& record, int rank, int ranks);
[[noreturn]] void throw_abort(const arena::AbortRecord& record, int rank, int ranks);

}  // namespace lockstep::internal
