// Descriptors that belong to this process alone: a child that is forked holds none of them, so that a connection, a
// listener or a lock ends with the process that made it, whatever children outlive it. In the child their numbers lead
// to /dev/null until their owners there close them. Thread-safe.
//
// fork() waits for those that are just being made or closed, so none slips through. A child that vfork() or
// posix_spawn() makes runs another program, for which O_CLOEXEC does the same; all of them need that as well.
#pragma once

#include <utility>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

class PrivateFd {
 public:
  // What `open()` returns: a new descriptor, or a negative number and errno. REQUIRES: it does not block for long.
  template <class Open>
  static UniqueFd open(Open&& open) {
    const Gate gate;
    return adopt(std::forward<Open>(open)());
  }

 private:
  friend class UniqueFd;

  // Holds off fork().
  class Gate {
   public:
    Gate();
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
  };

  static UniqueFd adopt(int fd);
  // True if it was private, and so has been closed.
  static bool close(int fd);
};

}  // namespace lockstep
