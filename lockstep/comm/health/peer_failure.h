// The one error that says what became of a rank: every transport, store and backend composes it here from what it has
// seen. what was seen -> PeerFailure -> Error{peer_lost}. Pure.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/health/failure_detector.h"

namespace lockstep::internal {

// A rank that is gone.
struct PeerFailure {
  int peer = -1;
  std::string name;  // "rank 5 (host b, pid 71)"
  Departure how = Departure::died;
  std::string when = {};         // "while joining the job", "after 46 collectives"
  std::string why = {};          // as this rank saw it: "its process ended"
  std::string consequence = {};  // "rank 0 (host a, pid 12) waits for it in barrier #47"
};

// "rank 5 (host b, pid 71) has ended after 46 collectives: its process ended; rank 0 ... waits for it in barrier #47"
std::string describe(const PeerFailure& failure);
// The same as an error of `rank`.
Error peer_lost(const PeerFailure& failure, int rank);
// Whether the error says that a rank has left on purpose, and no more.
bool is_plain_departure(const Error& error);
// The same, or that it cannot be reached: Departure::left or gone.
bool may_have_left(const Error& error);

// A rank that a call waits for: "rank 2 (host b, pid 71) has not entered it: alive, last seen in barrier #41, ...".
// reason: what this rank waits for; may be empty.
std::string describe_missing(std::string_view name, std::string_view reason, const PeerHealth& health);

// The error for the other ranks when `rank`, called `name`, leaves with `error`. An error about another rank is not
// changed: it is the root cause. Any other becomes one of this rank: invalid_argument keeps its kind, the rest is
// Error{aborted}.
Error error_for_peers(std::string_view name, int rank, const Error& error);

}  // namespace lockstep::internal
