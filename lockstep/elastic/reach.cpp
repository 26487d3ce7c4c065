#include "lockstep/elastic/reach.h"

#include <poll.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/net/address.h"

namespace lockstep::internal {

bool reaches(const std::string& address, std::uint16_t port, Deadline deadline) {
  try {
    const SocketAddress to = resolve({address, port}, deadline).at(0);
    const UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return false;
    if (::connect(fd.get(), to.data(), to.length()) == 0) return true;
    if (errno != EINPROGRESS) return errno == ECONNREFUSED;
    pollfd entry{fd.get(), POLLOUT, 0};
    if (::poll(&entry, 1, deadline.poll_timeout_ms()) != 1) return false;
    int error = 0;
    socklen_t length = sizeof error;
    return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && (error == 0 || error == ECONNREFUSED);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lockstep::internal
