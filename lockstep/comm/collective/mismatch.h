// Texts about ranks that made different calls, or none: which rank did what. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/call_report.h"
#include "lockstep/comm/collective/call_sites.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {

// The call of one rank.
struct CallSide {
  int rank = -1;
  std::string who;  // "rank 2 (host b, pid 71)"
  Signature signature;
  CallReport account = {};
};

// The warning of CallSites::warn.
std::string describe_other_line(const std::string& who, const Signature& theirs, const Signature& mine);
// Whether to give it.
bool is_other_line(const Signature& theirs, const Signature& mine);

// Error{desync} on `rank` for ranks with different signatures. The text shows the calls of all, this rank's first, and
// what failed on them before.
Error desync_error(int rank, std::vector<CallSide> sides);
// A rank has gone, for which `waiter` waits in a collective: "rank 2 (host b, pid 71) has left the group after 46
// collectives; rank 0 waits for it in barrier #47", and what to do about it.
PeerFailure departure_in(const Signature& wanted, const std::string& name, Departure how, const std::string& waiter);

}  // namespace lockstep::internal
