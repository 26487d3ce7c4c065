// An Acceptor accepts connections and runs their handshakes, all at once, so that strangers that send nothing, or too
// little, do not delay the others. Listeners -> handshakes -> connections with proven identity. A connection that fails
// is closed and logged, at most one line a second. Used by one thread.
//
// Strangers can fill it. Then the oldest connection that has sent nothing, or else the oldest, is closed to admit the
// next, once it has had a moment to send; an honest peer that is closed by this connects again.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/rate_limited_log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/listener.h"

namespace lockstep::internal {

struct AcceptorLimits {
  std::size_t half_open = 64;  // connections in their handshake
  Duration handshake = kHandshakeTimeout;
};

class Acceptor {
 public:
  struct Arrival {
    UniqueFd fd;
    PeerIdentity peer;
  };

  // `what` begins lines in the log: "group 'world'".
  Acceptor(std::string what, std::vector<Listener> listeners, HandshakeSettings settings, Admission admission,
           const AcceptorLimits& limits = {});

  // The next connection whose handshake is done; empty at the deadline. Error{internal} without descriptors or memory;
  // the next call goes on.
  std::optional<Arrival> next(Deadline deadline);

  // The same for an event loop: never blocks. To be called when fd() is readable, and at wake_at().
  std::optional<Arrival> take();
  int fd() const { return epoll_.get(); }
  Deadline wake_at() const;
  // Accepts nothing more, and closes the connections that are in their handshake.
  void close();

  const std::vector<Listener>& listeners() const { return listeners_; }
  // Still open, for another acceptor; what waits in them is kept.
  std::vector<Listener> release() && { return std::move(listeners_); }

 private:
  struct Incoming {
    UniqueFd fd;
    std::string from;
    Handshake handshake;
    TimePoint since;
    bool has_spoken = false;
  };
  using Crowd = std::list<Incoming>;
  enum class Progress { pending, admitted, refused };
  enum class Pause { none, crowd, failure };

  void watch(int operation, int fd, bool readable, Incoming* incoming) const;
  void pause(Pause why, Deadline until);
  void resume();
  bool is_full() const { return crowd_.size() >= limits_.half_open; }
  bool accept_one();
  std::optional<Arrival> advance_ready();
  void refuse_late();
  Crowd::iterator next_to_close();
  Progress advance(Crowd::iterator incoming);
  void refuse(Crowd::iterator incoming, std::string_view why);

  const std::string what_;
  std::vector<Listener> listeners_;
  const HandshakeSettings settings_;
  const Admission admission_;
  const AcceptorLimits limits_;
  UniqueFd epoll_;
  Crowd crowd_;  // oldest first
  Pause paused_ = Pause::none;
  Deadline paused_until_ = Deadline::never();
  RateLimitedLog warnings_;
};

}  // namespace lockstep::internal
