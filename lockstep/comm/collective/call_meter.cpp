#include "lockstep/comm/collective/call_meter.h"

#include <algorithm>

namespace lockstep::internal {

void CallMeter::change(State state, TimePoint now) {
  const std::int64_t since = since_ns_.load(std::memory_order_relaxed);
  const std::int64_t now_ns = std::max<std::int64_t>(since, now.time_since_epoch().count());
  const std::uint32_t version = version_.load(std::memory_order_relaxed);
  const std::int64_t passed = now_ns - since;
  const State before = static_cast<State>(state_.load(std::memory_order_relaxed));
  version_.store(version + 1, std::memory_order_relaxed);
  if (before == kWaiting) {
    waiting_ns_.store(waiting_ns_.load(std::memory_order_relaxed) + passed, std::memory_order_release);
  } else if (before == kMoving) {
    moving_ns_.store(moving_ns_.load(std::memory_order_relaxed) + passed, std::memory_order_release);
  }
  since_ns_.store(now_ns, std::memory_order_release);
  state_.store(state, std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

CallTimes CallMeter::at(TimePoint now) const {
  for (;;) {  // a writer is between two of its stores for a few nanoseconds
    const std::uint32_t before = version_.load(std::memory_order_acquire);
    const auto state = static_cast<State>(state_.load(std::memory_order_acquire));
    const Duration since(since_ns_.load(std::memory_order_acquire));
    CallTimes times{Duration(waiting_ns_.load(std::memory_order_acquire)),
                    Duration(moving_ns_.load(std::memory_order_acquire))};
    if ((before & 1) != 0 || version_.load(std::memory_order_relaxed) != before) continue;
    const Duration passed = std::max(Duration(0), now.time_since_epoch() - since);
    if (state == kWaiting) times.waiting += passed;
    if (state == kMoving) times.moving += passed;
    return times;
  }
}

}  // namespace lockstep::internal
