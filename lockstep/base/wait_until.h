// Waits for a condition variable until a Deadline, which may move during the wait. std::condition_variable + Deadline.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

// Waits until `ready`, which it returns, or until the deadline. REQUIRES: `lock` is held.
template <class Changed, class Ready>
bool wait_until(Changed& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready()) {
    if (deadline.is_never()) {
      changed.wait(lock);
    } else if (deadline.expired()) {
      return false;
    } else {
      changed.wait_until(lock, deadline.when());
    }
  }
  return true;
}

}  // namespace lockstep::internal
