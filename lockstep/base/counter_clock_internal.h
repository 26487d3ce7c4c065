// A monotonic clock that is read from a processor's counter: counter + clock -> CounterClock. It reads the reference
// clock from time to time, and measures the counter's rate each time, since a virtual machine may move to other
// hardware. Thread-safe; never goes back within a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// Counter::now() gives ticks; Reference::now() the time. One object per instantiation: its thread-local state is
// shared.
template <class Counter, class Reference>
class CounterClock final : public Clock {
 public:
  TimePoint now() const override {
    thread_local Anchor anchor;
    const double rate = ns_per_tick_.load(std::memory_order_relaxed);
    const double elapsed_ns = static_cast<double>(Counter::now() - anchor.ticks) * rate;
    // A counter that was set back makes this large.
    if (rate == 0 || elapsed_ns > kTrustedNs) return ask(anchor);
    return advance(anchor, anchor.ns + static_cast<std::int64_t>(elapsed_ns));
  }

 private:
  // How far the counter is trusted before the clock is asked again, and what it takes to measure its rate at first.
  static constexpr double kTrustedNs = 20e6;
  static constexpr std::int64_t kMeasuredNs = 50'000'000;
  // A look at both clocks that takes longer was interrupted: they do not belong together. About two microseconds.
  static constexpr std::uint64_t kLookTicks = 5000;

  // A moment of this thread by both clocks.
  struct Anchor {
    std::uint64_t ticks = 0;
    std::int64_t ns = 0;
    std::int64_t last_ns = 0;
  };

  static TimePoint advance(Anchor& anchor, std::int64_t ns) {
    anchor.last_ns = std::max(anchor.last_ns, ns);
    return TimePoint(Duration(anchor.last_ns));
  }

  TimePoint ask(Anchor& anchor) const {
    const std::uint64_t ticks = Counter::now();
    const std::int64_t ns = Reference::now().time_since_epoch().count();
    if (Counter::now() - ticks > kLookTicks) return advance(anchor, ns);
    if (anchor.ns != 0 && ticks > anchor.ticks) {
      const bool is_measured = ns_per_tick_.load(std::memory_order_relaxed) != 0;
      if (!is_measured && ns - anchor.ns < kMeasuredNs) return advance(anchor, ns);
      ns_per_tick_.store(static_cast<double>(ns - anchor.ns) / static_cast<double>(ticks - anchor.ticks),
                         std::memory_order_relaxed);
    }
    anchor.ticks = ticks;
    anchor.ns = ns;
    return advance(anchor, ns);
  }

  mutable std::atomic<double> ns_per_tick_{0};  // 0: not measured yet
};

}  // namespace lockstep::internal
