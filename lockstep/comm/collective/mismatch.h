// What is made of ranks that came with different signatures, or did not come: who did what, in words. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/call_report.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {

// What a rank came with.
struct CallSide {
  int rank = -1;
  std::string who;  // "rank 2 (host b, pid 71)"
  Signature signature;
  CallReport account = {};
};

// What is made of calls that are equal but for the line of the source that they are in, and have no name. Programs may
// have reasons (one rank broadcasts where the others have another branch), and two calls that were swapped look the
// same.
//   free        nothing
//   warn        a warning, once, for calls that have no root: ranks seldom come to those from different lines
//   must_match  they are different calls
enum class CallSites { free, warn, must_match };
// The warning.
std::string describe_other_line(const std::string& who, const Signature& theirs, const Signature& mine);
// Whether to give it.
bool is_other_line(const Signature& theirs, const Signature& mine);

// Error{desync} on `rank` for ranks that came with different signatures. The text shows what all sides do, this rank's
// first, and what failed on them before.
Error desync_error(int rank, std::vector<CallSide> sides);
// That a rank has gone, which `waiter` waits for in a collective: "rank 2 (host b, pid 71) has left the group after 46
// collectives; rank 0 waits for it in barrier #47", and what to do about it.
PeerFailure departure_in(const Signature& wanted, const std::string& name, Departure how, const std::string& waiter);
// Whether ranks that found such a difference, and nothing else, can go on with their next calls.
bool can_go_on(const std::vector<CallSide>& sides);

}  // namespace lockstep::internal
