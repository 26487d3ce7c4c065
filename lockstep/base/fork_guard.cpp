#include "lockstep/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

std::atomic<std::uint32_t> ForkGuard::forks_so_far{0};

ForkGuard::ForkGuard() : forks_(forks_so_far), process_(::getpid()) {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks_so_far.fetch_add(1, std::memory_order_relaxed); });
}

void ForkGuard::throw_elsewhere(std::string_view what) const {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} was made in process {} and cannot be used in process {}, which was forked from it: its "
                          "threads, locks and connections do not survive fork(); fork before it is made, make another "
                          "one in the child, or start the child with spawn() or `lockstep run`",
                          what, process_, ::getpid()));
}

}  // namespace lockstep::internal
