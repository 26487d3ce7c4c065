#include "lockstep/comm/net/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/net/port_holder.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::internal {
namespace {

// The kernel cuts it to net.core.somaxconn.
constexpr int kBacklog = 4096;

// Clients speak first. The kernel keeps a connection that says nothing to itself for about so long, so that silent
// strangers are not in front of an honest peer in the queue.
constexpr int kSilentSeconds = 1;

int bind_and_listen(const SocketAddress& address, UniqueFd& out) {
  UniqueFd fd =
      PrivateFd::open([&] { return ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd) return errno;
  const int on = 1;
  // Without it a restarted job could not listen while connections of the previous run are in TIME_WAIT.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(fd.get(), address.data(), address.length()) != 0) return errno;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &kSilentSeconds, sizeof kSilentSeconds);  // without it: slower
  if (::listen(fd.get(), kBacklog) != 0) return errno;
  out = std::move(fd);
  return 0;
}

Error bind_error(const Endpoint& endpoint, const SocketAddress& address, int error) {
  const std::string where = to_string(address) == to_string(endpoint)
                                ? to_string(endpoint)
                                : fmt::format("{} ({})", to_string(endpoint), to_string(address));
  switch (error) {
    case EADDRINUSE: {
      const std::string holder = describe_port_holder(address.port());
      return Error(ErrorKind::invalid_argument,
                   fmt::format("cannot listen on {}: port {} is in use by {}; end that process or choose another port",
                               where, address.port(), holder.empty() ? "another process" : holder));
    }
    case EADDRNOTAVAIL:
      return Error(
          ErrorKind::invalid_argument,
          fmt::format("cannot listen on {}: this host has no such address; name the host that runs this process, "
                      "or one of its addresses",
                      where));
    case EACCES:
      return Error(ErrorKind::invalid_argument,
                   fmt::format("cannot listen on {}: this user may not use port {}; choose one above 1023", where,
                               address.port()));
    default: return system_error("cannot listen on " + where, error);
  }
}

}  // namespace

Listener Listener::bind(const Endpoint& endpoint, Deadline deadline) {
  const std::vector<SocketAddress> addresses = resolve(endpoint, deadline);
  int error = 0;
  for (const SocketAddress& address : addresses) {
    UniqueFd fd;
    error = bind_and_listen(address, fd);
    if (error == 0) return Listener(std::move(fd));
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) throw bind_error(endpoint, address, error);
  }
  throw bind_error(endpoint, addresses.back(), error);
}

SocketAddress Listener::address() const { return local_address(fd_.get()); }

UniqueFd Listener::accept() {
  for (;;) {
    UniqueFd fd =
        PrivateFd::open([this] { return ::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (fd) {
      tune_tcp(fd.get());
      return fd;
    }
    switch (errno) {
      case EAGAIN: return {};
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
      case EBADF:
      case EINVAL:
      case ENOTSOCK: throw system_error("accepting a connection on " + to_string(address()) + " failed", errno);
      default: break;  // this one connection died before it was accepted; the next may be fine
    }
  }
}

}  // namespace lockstep::internal
