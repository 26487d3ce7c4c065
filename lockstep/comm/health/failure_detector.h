// A FailureDetector knows how the other ranks of a group fare: whether they live, what they did last, and how they
// left. engine -> FailureDetector -> (messages) -> other rank. Any thread may call; nothing blocks.
// docs/FAILURE_DETECTION.md says who detects what.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// A host that does not answer for this long is lost, unless LOCKSTEP_HOST_TIMEOUT says otherwise.
inline constexpr Duration kHostTimeout = std::chrono::seconds(3);

// A call that waits for a rank whose heartbeat has been missing for this long says so in the log.
inline constexpr Duration kHeartbeatTimeout = std::chrono::milliseconds(2750);

// How a rank has gone.
//
//   left   on purpose: it said goodbye
//   died   its process ended without a goodbye
//   lost   its connection broke, or its host does not answer
//   gone   left or died: the observer cannot say which
//
enum class Departure { none, left, died, lost, gone };

// What is known of a rank; empty texts: nothing.
struct PeerHealth {
  Duration silent{};         // how long its heartbeat has been missing; zero: it came, or nobody asked for it
  std::string state = {};    // "alive", "silent for 3.4 s: stopped, or its host is down or overloaded"
  std::string place = {};    // "last seen in barrier #41, left it 3.2 s ago"
  std::uint64_t inside = 0;  // the number of the collective that it is in; 0: none, or not known
  Departure departure = Departure::none;
  TimePoint departed{};  // when that was seen

  std::string text() const { return state + (state.empty() || place.empty() ? "" : ", ") + place; }
};

class FailureDetector {
 public:
  virtual ~FailureDetector() = default;

  // Asks a rank for a heartbeat, unless it still owes one.
  virtual void ask(int rank) noexcept = 0;
  virtual PeerHealth health(int rank) const = 0;
};

}  // namespace lockstep::internal
