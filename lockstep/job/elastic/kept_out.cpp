#include "lockstep/job/elastic/kept_out.h"

#include <poll.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"

namespace lockstep::internal {
namespace {

constexpr Duration kBetweenTries = std::chrono::seconds(1);
constexpr Duration kOneTry = std::chrono::milliseconds(300);
constexpr Duration kLongest = std::chrono::seconds(60);

bool reaches(const Endpoint& endpoint, Deadline deadline) {
  try {
    const SocketAddress to = resolve(endpoint, deadline).at(0);
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

}  // namespace

KeptOut::KeptOut(KeepOut from, std::uint16_t port)
    : from_(std::move(from)),
      port_(port),
      give_up_at_(Deadline::after(kLongest)),
      try_at_(Deadline::after(kBetweenTries)) {}

bool KeptOut::is_over() {
  if (!try_at_.expired()) return false;
  try_at_ = Deadline::after(kBetweenTries);
  return give_up_at_.expired() || reaches({from_.address, port_}, Deadline::after(kOneTry));
}

}  // namespace lockstep::internal
