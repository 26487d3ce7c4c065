// AgentLink is a connection between two agents whose handshake is done: messages both ways, and heartbeats that show
// whether the other is alive. It fails when the other closes it or sends an invalid message, or when its host no longer
// answers or acknowledges no data. An agent that is silent while its host's kernel acknowledges
// data is stopped, or very slow: it is waited for, kFrozenLimit at most.
// Used by one thread, in its poll loop; never blocks; never throws, but keeps why it failed.
#pragma once

#include <poll.h>

#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/elastic/unacknowledged.h"

namespace lockstep::internal {

// For how long a host may be silent before it is lost.
Duration host_timeout();

class AgentLink {
 public:
  static constexpr Duration kBeat = std::chrono::milliseconds(500);
  static constexpr Duration kFrozenLimit = std::chrono::minutes(10);
  static constexpr std::size_t kMostQueuedBytes = std::size_t{64} << 20;  // for a slow reader

  AgentLink(UniqueFd fd, PeerIdentity peer);

  const PeerIdentity& peer() const { return peer_; }
  int fd() const { return fd_.get(); }
  // Numeric: of this end, and of the other.
  std::string own_address() const { return own_address_; }
  std::string peer_address() const { return peer_address_; }

  void send(const AgentMessage& message);
  // The next message that has arrived, in order; also after it has failed, as long as there are any.
  std::optional<AgentMessage> take();
  pollfd wanted() const;
  Deadline wake_at() const;
  // Reads and writes what it can, sends a heartbeat when one is due, and notices silence.
  void tend();

  bool failed() const { return !why_.empty(); }
  const std::string& why() const { return why_; }  // "its agent has closed the connection"
  // For how long the agent has been silent while its host answers; zero: it is not.
  Duration frozen_for() const;
  void give_up_frozen();
  bool went_silent() const { return silent_; }  // it may still be there
  // Tries for a moment to send what is queued. Blocks until the deadline at most.
  void flush(Deadline deadline);

 private:
  void read();
  void write();
  void fail(const std::string& why);
  void look_at_silence();
  void look_if_received();
  bool host_answers() const;

  Duration silence_;
  UniqueFd fd_;
  PeerIdentity peer_;
  std::string own_address_;
  std::string peer_address_;
  FrameBuffer received_{kMostAgentMessageBytes};
  Bytes queued_;
  std::size_t sent_ = 0;
  Deadline beat_at_;
  Deadline silent_at_;
  Unacknowledged unacknowledged_;
  std::optional<TimePoint> frozen_since_;
  std::string why_;
  bool silent_ = false;
};

}  // namespace lockstep::internal
