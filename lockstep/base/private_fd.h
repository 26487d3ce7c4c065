// Descriptors that forked children do not inherit, so that a connection, a listener or a lock ends with the process
// that made it, even if children outlive that process. In a child their numbers lead to /dev/null until their owners
// there close them. Thread-safe.
//
// fork() waits for descriptors that are just being made or closed. A child of vfork() or posix_spawn() executes another
// program; there O_CLOEXEC does the same, so every descriptor needs that flag as well.
#pragma once

#include <utility>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class PrivateFd {
 public:
  // What `open()` returns: a new descriptor, or a negative number and errno. REQUIRES: it does not block for long.
  template <class Open>
  static UniqueFd open(Open&& open) {
    const ForkLock lock;
    return adopt(std::forward<Open>(open)());
  }

 private:
  friend class UniqueFd;

  // Delays fork() while it lives.
  class ForkLock {
   public:
    ForkLock();
    ~ForkLock();
    ForkLock(const ForkLock&) = delete;
    ForkLock& operator=(const ForkLock&) = delete;
  };

  static UniqueFd adopt(int fd);
  // True if it was private; then it is closed.
  static bool close(int fd);
};

}  // namespace lockstep::internal
