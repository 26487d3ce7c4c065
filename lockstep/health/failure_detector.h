// A FailureDetector knows how other ranks fare while an engine waits for them. engine -> FailureDetector -> (messages) -> other rank.
// Any thread may call; nothing blocks.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/clock.h"

namespace lockstep {

// A call that has waited this long for a rank that gives no sign of life says so in the log.
inline constexpr Duration kHeartbeatTimeout = std::chrono::milliseconds(2750);

// How a rank's connection has ended: with a goodbye, or without.
enum class Departure { none, left, lost };

// What is known of a rank; empty texts: nothing.
struct PeerHealth {
  Duration silent{};         // for how long it has not answered; zero: it has, or was not asked
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

  // Asks a rank for a sign of life, unless it still owes one.
  virtual void ask(int rank) noexcept = 0;
  virtual PeerHealth health(int rank) const = 0;
};

}  // namespace lockstep
