#include "lockstep/comm/transport/control_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kReadBytes = 512;

}  // namespace

ControlConnection::ControlConnection(Duration host_timeout) : host_timeout_(host_timeout) {
  frames_.reserve(2 * kReadBytes);  // the usual messages, which are short, take no memory
}

void ControlConnection::send(ByteView message) noexcept {
  if (!fd_ || is_dead()) return;
  try {
    // Groups are many, and a peer that computes does not read: the connection may be full.
    if (!unsent_.empty()) {
      unsent_ += message;
      message = unsent_;
    }
    if (message.empty()) return;
    const ssize_t count = ::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    const bool is_full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    unsent_ = count < 0 && !is_full ? Bytes() : Bytes(message.substr(is_full ? 0 : static_cast<std::size_t>(count)));
  } catch (const std::exception&) {  // no memory: the peer sees how this process ends
  }
}

void ControlConnection::read(const std::function<void(ByteView)>& take) {
  char buffer[kReadBytes];
  while (fd_ && !is_dead()) {
    const ssize_t count = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) {
      why_ = "its process ended";
      return;
    }
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // What the last route said, if one did: none, a blackhole (EINVAL), prohibited (EACCES).
      const bool is_silent =
          errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH || errno == EINVAL || errno == EACCES;
      why_ = is_silent
                 ? fmt::format("its host has not answered for {} s (LOCKSTEP_HOST_TIMEOUT)", seconds(host_timeout_))
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
