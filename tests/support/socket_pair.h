// Two connected, non-blocking stream sockets of this process.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

inline std::pair<internal::UniqueFd, internal::UniqueFd> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
    throw system_error("socketpair", errno);
  }
  return {internal::UniqueFd(fds[0]), internal::UniqueFd(fds[1])};
}

}  // namespace lockstep
