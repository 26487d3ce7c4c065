// What this rank knows of one peer: its connections, and whether it is still there. SharedLinks -> TcpPeer ->
// connections. One thread at a time; nothing here blocks.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/tcp_streams.h"

namespace lockstep::internal {

struct TcpPeer {
  TcpPeer();

  std::string name;  // "rank 2 (host n1, pid 811)"
  UniqueFd control;
  TcpStreams streams;  // of a peer whose data do not go through memory
  Duration host_timeout = kHostTimeout;
  std::string why;      // it is dead; else empty
  std::string damaged;  // why its data can no longer be read; else empty

  bool is_dead() const { return !why.empty(); }

  // On the control connection, as far as it goes without waiting; the rest goes with later calls.
  void send_control(ByteView message) noexcept;
  void flush_control() noexcept { send_control({}); }
  // Hands over the messages that have arrived, and sees whether the peer has died. Throws what `take` throws, and
  // Error{corrupt_data} for what cannot be a message.
  void read_control(const std::function<void(ByteView)>& take);

 private:
  FrameBuffer frames_{kMaxControlBytes};
  Bytes unsent_;
};

}  // namespace lockstep::internal
