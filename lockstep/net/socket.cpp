#include "lockstep/net/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/net/unix_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstPause = 5ms;
constexpr Duration kLongestPause = 250ms;

void set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) {
    throw system_error(fmt::format("setting {} on a socket failed", name), errno);
  }
}

// A descriptor that is connected, or the errno of why it is not; 0 and no descriptor at the deadline.
struct Attempt {
  UniqueFd fd;
  int saved_errno = 0;
};

Attempt try_connect(const SocketAddress& address, Deadline deadline) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return {{}, errno};
  // A connect() that a signal interrupts goes on in the background, just like one that would block.
  if (::connect(fd.get(), address.data(), address.length()) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return {{}, errno};
    pollfd entry{fd.get(), POLLOUT, 0};
    while (::poll(&entry, 1, deadline.poll_timeout_ms()) <= 0) {
      if (deadline.expired()) return {};
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return {{}, error};
  }
  // Connecting to a free port of the ephemeral range on this host may meet itself (simultaneous open).
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length);
  const SocketAddress mine(reinterpret_cast<const sockaddr*>(&local), length);
  if (mine.endpoint() == address.endpoint()) return {{}, ECONNREFUSED};
  return {std::move(fd), 0};
}

bool may_heal(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EAGAIN: return true;
    default: return false;
  }
}

Error lost(int fd, std::string_view doing, std::string_view why) {
  return Error(ErrorKind::peer_lost,
               fmt::format("lost the connection to {} while {}: {}", describe_peer(fd), doing, why));
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

UniqueFd connect_tcp(const Endpoint& endpoint, ConnectRetry retry, Deadline deadline) {
  Duration pause = kFirstPause;
  std::string last = "no attempt was made";
  for (int rounds = 1;; ++rounds) {
    bool hopeless = true;
    bool refused = false;
    for (const SocketAddress& address : resolve(endpoint, deadline)) {
      Attempt attempt = try_connect(address, deadline);
      if (attempt.fd) {
        tune_tcp(attempt.fd.get());
        return std::move(attempt.fd);
      }
      hopeless = hopeless && attempt.saved_errno != 0 && !may_heal(attempt.saved_errno);
      refused = refused || attempt.saved_errno == ECONNREFUSED;
      // An address family that this host lacks says nothing about the server.
      if (attempt.saved_errno != EAFNOSUPPORT && attempt.saved_errno != EADDRNOTAVAIL) {
        last = fmt::format("{}: {}", to_string(address),
                           attempt.saved_errno == 0 ? "no answer" : std::strerror(attempt.saved_errno));
      }
      if (deadline.expired()) break;
    }
    const bool expired = deadline.expired();
    const bool is_gone = retry == ConnectRetry::unless_refused && refused;
    if (!expired && (retry == ConnectRetry::never || hopeless || is_gone)) {
      throw Error(hopeless ? ErrorKind::internal : ErrorKind::peer_lost,
                  fmt::format("cannot connect to {} ({})", to_string(endpoint), last));
    }
    if (expired) {
      throw Error(
          ErrorKind::timeout,
          fmt::format("could not connect to {} before the deadline ({}{}); check that the address and port are "
                      "right, that the server is running and that no firewall is in between",
                      to_string(endpoint), rounds == 1 ? "" : fmt::format("{} attempts, the last: ", rounds), last));
    }
    ::poll(nullptr, 0, deadline.poll_timeout_ms(static_cast<int>(pause / 1ms)));
    pause = std::min(pause * 2, kLongestPause);
  }
}

void tune_tcp(int fd, Duration user_timeout) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  const auto user_timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(user_timeout).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout_ms), "TCP_USER_TIMEOUT");
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5, "TCP_KEEPIDLE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2, "TCP_KEEPINTVL");
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT");
}

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw system_error("making a socket non-blocking failed", errno);
  }
}

SocketAddress local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    throw system_error("reading a socket's own address failed", errno);
  }
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

std::string describe_peer(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "a closed connection";
  if (storage.ss_family != AF_UNIX) {
    return to_string(SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length));
  }
  const PeerCredentials peer = peer_credentials(fd);
  return fmt::format("process {} of user {} (unix socket)", peer.pid, peer.uid);
}

void wait_ready(int fd, short events, Deadline deadline, std::string_view what) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.poll_timeout_ms());
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw system_error(fmt::format("waiting for {} failed", what), errno);
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout,
                  fmt::format("no answer from {} before the deadline, while {}", describe_peer(fd), what));
    }
  }
}

std::size_t send_some(int fd, ByteSpan data) {
  const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block(errno)) return 0;
  throw lost(fd, "sending", std::strerror(errno));
}

std::size_t recv_some(int fd, MutableByteSpan data) {
  if (data.empty()) return 0;
  const ssize_t received = ::recv(fd, data.data(), data.size(), MSG_DONTWAIT);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received == 0) throw lost(fd, "receiving", "the peer closed it");
  if (would_block(errno)) return 0;
  throw lost(fd, "receiving", std::strerror(errno));
}

void send_all(int fd, ByteSpan data, Deadline deadline) {
  while (!data.empty()) {
    const std::size_t sent = send_some(fd, data);
    data = data.subspan(sent);
    if (sent == 0) wait_ready(fd, POLLOUT, deadline, "sending");
  }
}

void recv_all(int fd, MutableByteSpan data, Deadline deadline) {
  while (!data.empty()) {
    const std::size_t received = recv_some(fd, data);
    data = data.subspan(received);
    if (received == 0) wait_ready(fd, POLLIN, deadline, "receiving");
  }
}

}  // namespace lockstep
