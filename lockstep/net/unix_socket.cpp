#include "lockstep/net/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/net/socket.h"

namespace lockstep {
namespace {

struct AbstractName {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit AbstractName(std::string_view name) {
    if (name.empty() || name.size() > kMaxUnixNameBytes) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("a unix socket name has 1 to {} bytes, this one has {}", kMaxUnixNameBytes, name.size()));
    }
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd unix_stream_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("making a unix socket failed", errno);
  return fd;
}

}  // namespace

PeerCredentials peer_credentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw system_error("asking who is at the other end of a unix socket failed", errno);
  }
  return {credentials.pid, credentials.uid, credentials.gid};
}

UniqueFd unix_listen(std::string_view name, int backlog) {
  const AbstractName address(name);
  UniqueFd fd = unix_stream_socket();
  if (::bind(fd.get(), address.data(), address.length) != 0 || ::listen(fd.get(), backlog) != 0) {
    if (errno != EADDRINUSE) throw system_error(fmt::format("listening on the unix socket @{} failed", name), errno);
    throw Error(ErrorKind::invalid_argument, fmt::format("the unix socket name @{} is taken by another process", name));
  }
  return fd;
}

UniqueFd unix_accept(int listener, Deadline deadline) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      const PeerCredentials peer = peer_credentials(fd.get());
      if (peer.uid == ::geteuid()) return fd;
      log_warning(fmt::format("refused a unix socket connection from process {} of user {}", peer.pid, peer.uid));
    } else if (errno == EAGAIN) {
      wait_ready(listener, POLLIN, deadline, "waiting for a connection to a unix socket");
    } else if (errno != EINTR && errno != ECONNABORTED) {
      throw system_error("accepting a connection on a unix socket failed", errno);
    }
  }
}

UniqueFd unix_connect(std::string_view name, Deadline deadline) {
  const AbstractName address(name);
  int pause_ms = 1;
  for (;;) {
    UniqueFd fd = unix_stream_socket();
    if (::connect(fd.get(), address.data(), address.length) == 0) {
      const PeerCredentials peer = peer_credentials(fd.get());
      if (peer.uid == ::geteuid()) return fd;
      throw Error(ErrorKind::unauthorized,
                  fmt::format("the unix socket @{} belongs to process {} of user {}, not of this user {}", name,
                              peer.pid, peer.uid, ::geteuid()));
    }
    // EAGAIN: the listener's backlog is full.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      throw system_error(fmt::format("connecting to the unix socket @{} failed", name), errno);
    }
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout,
                  fmt::format("nobody accepted a connection to the unix socket @{} before the deadline", name));
    }
    ::poll(nullptr, 0, deadline.poll_timeout_ms(pause_ms));
    pause_ms = std::min(pause_ms * 2, 20);
  }
}

void send_fd(int socket, int fd, Deadline deadline) {
  char carrier = 'f';  // a descriptor travels with at least one byte
  iovec vector{&carrier, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN) {
      wait_ready(socket, POLLOUT, deadline, "passing a descriptor");
    } else if (errno == EPIPE || errno == ECONNRESET) {
      throw Error(ErrorKind::peer_lost, fmt::format("{} went away before it took a descriptor", describe_peer(socket)));
    } else if (errno != EINTR) {
      throw system_error("passing a descriptor failed", errno);
    }
  }
}

UniqueFd recv_fd(int socket, Deadline deadline) {
  char carrier = 0;
  iovec vector{&carrier, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  for (;;) {
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno == ECONNRESET)) {
      throw Error(ErrorKind::peer_lost,
                  fmt::format("{} went away before it passed a descriptor", describe_peer(socket)));
    }
    if (received < 0 && errno == EAGAIN) {
      wait_ready(socket, POLLIN, deadline, "waiting for a descriptor");
      continue;
    }
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) throw system_error("receiving a descriptor failed", errno);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
      throw Error(ErrorKind::corrupt_data,
                  fmt::format("{} sent a byte where a descriptor belongs", describe_peer(socket)));
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return UniqueFd(fd);
  }
}

}  // namespace lockstep
