// The calls that a rank announces to all others, its own first: in a tree, when it waits for long; and, with a call
// that differs, as soon as it knows of one. calls -> bytes -> calls. Pure.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/collective/mismatch.h"

namespace lockstep::internal {

inline constexpr std::size_t kMostAnnouncedCalls = 2;
// REQUIRES: one call, or kMostAnnouncedCalls.
Bytes encode_calls(std::span<const CallSide> calls);
// Of rank `from` of `ranks`; without the ranks' names. Error{corrupt_data} that names it.
std::vector<CallSide> decode_calls(ByteView bytes, int from, int ranks);

}  // namespace lockstep::internal
