// The connection for control messages to one peer, on which its death is noticed, if there is one yet. TcpPeer ->
// ControlConnection.
// One thread at a time; nothing here blocks.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/transport/control_message.h"

namespace lockstep::internal {

class ControlConnection {
 public:
  explicit ControlConnection(Duration host_timeout);

  void open(UniqueFd fd) { fd_ = std::move(fd); }
  // It cannot be opened.
  void fail(const std::string& why) { why_ = why; }
  bool is_open() const { return static_cast<bool>(fd_); }

  int fd() const { return fd_.get(); }
  bool is_dead() const { return !why_.empty(); }
  const std::string& why_dead() const { return why_; }

  // As far as the connection takes it; the rest goes with later calls.
  void send(ByteView message) noexcept;
  void flush() noexcept { send({}); }
  // Hands over the messages that have arrived, and notes whether the peer has died. Throws what `take` throws, and
  // Error{corrupt_data} for what cannot be a message.
  void read(const std::function<void(ByteView)>& take);

 private:
  UniqueFd fd_;
  const Duration host_timeout_;
  std::string why_;  // it is dead; else empty
  FrameBuffer frames_{kMaxControlBytes};
  Bytes unsent_;
};

}  // namespace lockstep::internal
