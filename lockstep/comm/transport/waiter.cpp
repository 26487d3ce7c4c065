#include "lockstep/comm/transport/waiter.h"

#include <sched.h>

#include <algorithm>

namespace lockstep::internal {

bool Waiter::wait(Deadline deadline) {
  const TimePoint start = steady_clock().now();
  TimePoint now = start;
  for (; now - start < steps_.yield_for && !deadline.expired(now); now = steady_clock().now()) {
    ::sched_yield();
    if (is_ready_after_yield()) return true;
  }
  for (;; now = steady_clock().now()) {
    look(now - start);
    const bool is_last = deadline.expired(now);
    sleep(is_last ? Duration::zero() : std::min(steps_.look_period, deadline.remaining(now)));
    if (is_ready()) return true;
    if (is_last) return false;
  }
}

}  // namespace lockstep::internal
