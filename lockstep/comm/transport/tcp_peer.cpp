#include "lockstep/comm/transport/tcp_peer.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

// Makes room for the usual messages, which then take no memory.
TcpPeer::TcpPeer() {
  frames_.append(frame(Bytes(64, ' '), kMaxControlBytes));
  frames_.next();
}

void TcpPeer::send_control(ByteView message) noexcept {
  if (!control || is_dead()) return;
  try {
    // Groups are many, and a peer that computes does not read: the connection may be full.
    if (!unsent_.empty()) {
      unsent_ += message;
      message = unsent_;
    }
    if (message.empty()) return;
    const ssize_t count = ::send(control.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    const bool is_full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    unsent_ = count < 0 && !is_full ? Bytes() : Bytes(message.substr(is_full ? 0 : static_cast<std::size_t>(count)));
  } catch (const std::exception&) {  // no memory: the peer sees how this process ends
  }
}

void TcpPeer::read_control(const std::function<void(ByteView)>& take) {
  char buffer[512];
  while (control && !is_dead()) {
    const ssize_t count = ::recv(control.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) {
      why = "its process ended";
      return;
    }
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // What the last route said, if one did: none, a blackhole (EINVAL), prohibited (EACCES).
      const bool is_silent =
          errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH || errno == EINVAL || errno == EACCES;
      why = is_silent ? fmt::format("its host has not answered for {} s (LOCKSTEP_HOST_TIMEOUT)", seconds(host_timeout))
                      : std::strerror(errno);
      return;
    }
    try {
      frames_.append({buffer, static_cast<std::size_t>(count)});
      while (const auto bytes = frames_.next()) take(*bytes);
    } catch (const Error&) {  // nothing after it can be read
      frames_ = FrameBuffer(kMaxControlBytes);
      throw;
    }
  }
}

}  // namespace lockstep::internal
