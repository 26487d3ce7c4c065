// One client's connection inside a StoreServer: first its handshake, then frames in and frames out. Never blocks.
// Owned and used by the server's thread alone. Its functions throw lockstep::Error when the connection must be closed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/net/framing.h"
#include "lockstep/net/handshake.h"
#include "lockstep/net/socket.h"
#include "lockstep/store/store_machine.h"

namespace lockstep {

class StoreConnection {
 public:
  StoreConnection(UniqueFd fd, Handshake handshake, Deadline handshake_deadline);

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }
  bool half_open() const { return handshake_.has_value(); }
  // Nothing has come from it yet.
  bool silent() const { return silent_; }
  Deadline handshake_deadline() const { return handshake_deadline_; }

  // Reads once and returns the requests that are complete.
  std::vector<StoreRequest> read();
  // Error{aborted} if more than `limit_bytes` are queued because the client does not read.
  void send(const StoreReply& reply, std::size_t limit_bytes);
  // Sends what the socket takes now.
  void flush();
  bool has_output() const { return sent_ < output_.size(); }

  // Nothing came from it since.
  TimePoint last_request = steady_clock().now();
  // The events for which the server's epoll watches this connection now; it keeps what it was told last.
  std::uint32_t watched_events = 0;

 private:
  void advance_handshake();
  void forget_sent();

  UniqueFd fd_;
  std::string peer_;
  std::optional<Handshake> handshake_;
  bool silent_ = true;
  Deadline handshake_deadline_;
  FrameBuffer frames_{kMaxStoreFrameBytes};
  Bytes output_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep
