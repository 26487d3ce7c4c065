#include "lockstep/comm/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstPause = 5ms;
constexpr Duration kLongestPause = 250ms;
// How long one address is tried alone before the next is tried beside it (RFC 8305).
constexpr Duration kStagger = 250ms;

void set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) {
    throw system_error(fmt::format("setting {} on a socket failed", name), errno);
  }
}

// Connecting to a free port of the ephemeral range on this host may meet itself (simultaneous open).
bool is_connected_to_itself(int fd, const SocketAddress& address) {
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&local), length).endpoint() == address.endpoint();
}

// Tries the addresses of a server side by side, each started a moment after the one before, so that an address that
// does not answer does not delay the others.
class Race {
 public:
  Race(std::vector<SocketAddress> addresses, ConnectRetry retry) : retry_(retry) {
    TimePoint due = steady_clock().now();
    for (SocketAddress& each : addresses) {
      attempts_.push_back({.address = std::move(each), .due = due});
      due += kStagger;
    }
  }

  // The first that connects; empty when all have failed, when a refusal ends the race, or at the deadline.
  UniqueFd run(Deadline deadline) {
    for (;;) {
      for (Attempt& each : attempts_) {
        if (!each.fd && steady_clock().now() >= each.due && begin(each)) return std::move(each.fd);
      }
      if (std::ranges::none_of(attempts_, [](const Attempt& each) { return bool(each.fd); })) {
        const auto next = std::ranges::find_if(attempts_, [](const Attempt& each) { return !each.error; });
        if (next == attempts_.end()) return {};
        next->due = steady_clock().now();
        continue;
      }
      if (const auto winner = wait(deadline); winner != attempts_.end()) return std::move(winner->fd);
      if (deadline.expired() || (retry_ == ConnectRetry::unless_refused && steady_clock().now() >= given_up_))
        return {};
    }
  }

  bool is_refused() const {
    return std::ranges::any_of(attempts_, [](const Attempt& each) { return each.error == ECONNREFUSED; });
  }
  bool is_hopeless() const {
    return std::ranges::all_of(attempts_, [](const Attempt& each) { return each.error && !may_heal(*each.error); });
  }
  // "127.0.0.1:4711: Connection refused", for each address that says something about the server.
  std::string report() const {
    std::string text;
    for (const Attempt& each : attempts_) {
      // An address family that this host lacks says nothing, unless there is no other.
      if (attempts_.size() > 1 && (each.error == EAFNOSUPPORT || each.error == EADDRNOTAVAIL)) continue;
      const std::string address = to_string(each.address);
      text += text.empty() ? "" : "; ";
      text += each.error ? system_error(address, *each.error).what() : address + ": no answer";
    }
    return text;
  }

 private:
  struct Attempt {
    SocketAddress address;
    UniqueFd fd = {};    // while it is connecting
    TimePoint due = {};  // when it is to be tried (again)
    Duration pause = kFirstPause;
    std::optional<int> error = {};  // of the last time
  };
  using Attempts = std::vector<Attempt>;

  // Whether it is connected already.
  bool begin(Attempt& attempt) {
    attempt.fd = PrivateFd::open(
        [&] { return ::socket(attempt.address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
    if (!attempt.fd) return end(attempt, errno);
    if (::connect(attempt.fd.get(), attempt.address.data(), attempt.address.length()) == 0) return end(attempt, 0);
    // A connect() that a signal interrupts goes on in the background, just like one that would block.
    return errno == EINPROGRESS || errno == EINTR ? false : end(attempt, errno);
  }

  bool end(Attempt& attempt, int error) {
    if (error == 0 && is_connected_to_itself(attempt.fd.get(), attempt.address)) error = ECONNREFUSED;
    if (error == 0) return true;
    attempt.fd.reset();
    attempt.error = error;
    const TimePoint now = steady_clock().now();
    attempt.due = retry_ == ConnectRetry::never || !may_heal(error) ? TimePoint::max() : now + attempt.pause;
    attempt.pause = std::min(attempt.pause * 2, kLongestPause);
    if (error == ECONNREFUSED) given_up_ = std::min(given_up_, now + kStagger);
    return false;
  }

  // Until one is connected or there is something else to do.
  Attempts::iterator wait(Deadline deadline) {
    std::vector<pollfd> polled;
    Deadline next = deadline;
    if (retry_ == ConnectRetry::unless_refused) next = std::min(next, Deadline::at(given_up_));
    for (const Attempt& each : attempts_) {
      polled.push_back({each.fd.get(), POLLOUT, 0});  // poll() skips those that are not connecting
      if (!each.fd) next = std::min(next, Deadline::at(each.due));
    }
    if (::poll(polled.data(), polled.size(), next.poll_timeout_ms()) <= 0) return attempts_.end();
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(polled[i].fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if (end(attempts_[i], error)) return attempts_.begin() + static_cast<std::ptrdiff_t>(i);
    }
    return attempts_.end();
  }

  const ConnectRetry retry_;
  Attempts attempts_;
  TimePoint given_up_ = TimePoint::max();  // when a refusal counts for all addresses
};

Error lost(int fd, std::string_view doing, std::string_view why) {
  return Error(ErrorKind::peer_lost,
               fmt::format("lost the connection to {} while {}: {}", describe_peer(fd), doing, why));
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool may_heal(int connect_error) {
  switch (connect_error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case ENONET:
    case EADDRNOTAVAIL:  // this host has no address for it yet, or all of its ports are in use
    case EINVAL:         // a route of type blackhole
    case EACCES:         // a route of type prohibit
    case EPERM:          // a firewall's rule on this host
    case EPROTO:         // a firewall's answer, by ICMP
    case ENOPROTOOPT:
    case ENOBUFS:
    case ENOMEM:
    case EAGAIN: return true;
    default: return false;
  }
}

UniqueFd connect_tcp(const Endpoint& endpoint, ConnectRetry retry, Deadline deadline) {
  Duration pause = kFirstPause;
  for (int rounds = 1;; ++rounds) {
    Race race(resolve(endpoint, deadline), retry);
    if (UniqueFd fd = race.run(deadline)) {
      tune_tcp(fd.get());
      return fd;
    }
    const bool is_gone = retry == ConnectRetry::unless_refused && race.is_refused();
    if (race.is_hopeless() || (!deadline.expired() && (retry == ConnectRetry::never || is_gone))) {
      throw Error(race.is_hopeless() ? ErrorKind::internal : ErrorKind::peer_lost,
                  fmt::format("cannot connect to {} ({})", to_string(endpoint), race.report()));
    }
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout,
                  fmt::format("could not connect to {} before the deadline ({}{}); check that the address and port are "
                              "right, that the server is running and that no firewall is in between",
                              to_string(endpoint), rounds == 1 ? "" : fmt::format("{} attempts, the last: ", rounds),
                              race.report()));
    }
    ::poll(nullptr, 0, deadline.poll_timeout_ms(static_cast<int>(pause / 1ms)));
    pause = std::min(pause * 2, kLongestPause);
  }
}

// A connection to an address of this host comes from the same address, or from another one of the loopback interface.
bool is_within_host(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return false;
  const SocketAddress peer(reinterpret_cast<const sockaddr*>(&storage), length);
  return peer.is_loopback() || peer.host() == local_address(fd).host();
}

void tune_tcp(int fd, Duration user_timeout) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  if (is_within_host(fd)) user_timeout = Duration::zero();
  const auto user_timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(user_timeout).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout_ms), "TCP_USER_TIMEOUT");
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, user_timeout_ms == 0 ? 0 : 1, "SO_KEEPALIVE");
  if (user_timeout_ms == 0) return;
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5, "TCP_KEEPIDLE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2, "TCP_KEEPINTVL");
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT");
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
  ucred peer{};
  socklen_t size = sizeof peer;
  ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
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

}  // namespace lockstep::internal
