// One client's connection inside a StoreServer, after its handshake: frames in, frames out. Never blocks. Used by the
// server's thread alone. Its functions throw when the connection must be closed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/store/store_machine.h"

namespace lockstep::internal {

class StoreConnection {
 public:
  explicit StoreConnection(UniqueFd fd) : fd_(std::move(fd)), peer_(describe_peer(fd_.get())) {}

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  // Reads once and returns the requests that are complete.
  std::vector<StoreRequest> read();
  // Error{aborted} if more than `limit_bytes` are queued because the client does not read.
  void send(const StoreReply& reply, std::size_t limit_bytes);
  // Sends what the socket takes now.
  void flush();
  bool has_output() const { return sent_ < output_.size(); }

  // When it last sent something.
  TimePoint last_request = steady_clock().now();
  // The events for which the server's epoll watches this connection now; as it was last set.
  std::uint32_t watched_events = 0;

 private:
  void forget_sent();

  UniqueFd fd_;
  std::string peer_;
  FrameBuffer frames_{kMaxStoreFrameBytes};
  Bytes output_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep::internal
