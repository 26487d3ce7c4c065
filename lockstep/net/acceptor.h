// An Acceptor takes connections and makes their handshakes, all at once, so that strangers who say nothing, or too
// little, keep nobody waiting. Listeners -> handshakes -> connections with proven claims. Who fails is closed and told
// in the log, at most one line a second. Used by one thread.
//
// A crowd of strangers can fill it. Then the oldest that has said nothing, or else the oldest, is closed for the next,
// as soon as it has had a moment to speak; an honest peer that this hits connects again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/rate_limited_log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/net/handshake.h"
#include "lockstep/net/listener.h"

namespace lockstep {

class Acceptor {
 public:
  static constexpr std::size_t kMaxHalfOpen = 64;

  struct Arrival {
    UniqueFd fd;
    PeerIdentity claims;
  };

  // `what` begins lines in the log: "mesh 'world'".
  Acceptor(std::string what, std::vector<Listener> listeners, HandshakeSettings settings, Admission admission);

  // The next connection whose handshake is done; empty at the deadline. Error{internal} without descriptors or memory.
  std::optional<Arrival> next(Deadline deadline);

  const std::vector<Listener>& listeners() const { return listeners_; }

 private:
  struct Incoming {
    UniqueFd fd;
    std::string from;
    Handshake handshake;
    TimePoint since;
    bool has_spoken = false;
  };
  using Crowd = std::vector<Incoming>;
  enum class Progress { pending, admitted, refused };

  bool is_full() const { return crowd_.size() >= kMaxHalfOpen; }
  void accept_all();
  std::optional<Arrival> advance_all();
  Crowd::iterator least_welcome();
  Deadline patience();  // until when it may stay. REQUIRES: is_full()
  Progress advance(Incoming& incoming);
  void refuse(const Incoming& incoming, std::string_view why);
  void wait(Deadline deadline);

  const std::string what_;
  std::vector<Listener> listeners_;
  const HandshakeSettings settings_;
  const Admission admission_;
  Crowd crowd_;  // oldest first
  RateLimitedLog complaints_;
};

}  // namespace lockstep
