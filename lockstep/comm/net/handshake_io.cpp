#include <poll.h>

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::internal {
namespace {

// The error again, with the peer's address in front.
Error about_peer(const std::string& peer, const Error& error) {
  return Error(error.kind(), fmt::format("handshake with {}: {}", peer, error.what()), error.detail());
}

}  // namespace

PeerIdentity complete_handshake(int fd, Handshake handshake, Deadline deadline) {
  const std::string peer = describe_peer(fd);
  try {
    for (;;) {
      const Bytes output = handshake.take_output();
      send_all(fd, as_span(ByteView(output)), deadline);
      if (handshake.over()) break;
      std::byte buffer[256];
      const std::size_t count = recv_some(fd, MutableByteSpan(buffer, std::min(sizeof buffer, handshake.wanted())));
      handshake.feed({reinterpret_cast<const char*>(buffer), count});
      if (count == 0) wait_ready(fd, POLLIN, deadline, "waiting for its part of the handshake");
    }
  } catch (const Error& error) {
    throw about_peer(peer, error);
  }
  if (handshake.failure()) throw about_peer(peer, *handshake.failure());
  return handshake.peer();
}

}  // namespace lockstep::internal
