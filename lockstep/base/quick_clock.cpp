#include "lockstep/base/quick_clock.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lockstep {
namespace {

#if defined(__x86_64__)

// A counter that the kernel itself keeps time by runs at one rate on all cores and never stops.
bool counter_keeps_time() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return file >> source && source == "tsc";
}

// How far the counter is trusted before the clock is asked again, and what it takes to measure its rate.
constexpr double kTrustedNs = 20e6;
constexpr std::int64_t kMeasuredNs = 50'000'000;
// A look at both clocks that takes longer was interrupted: they do not belong together. About two microseconds.
constexpr std::uint64_t kLookTicks = 5000;

class CounterClock final : public Clock {
 public:
  TimePoint now() const override {
    thread_local Anchor anchor;
    const double rate = ns_per_tick_.load(std::memory_order_relaxed);
    const double elapsed_ns = static_cast<double>(__rdtsc() - anchor.ticks) * rate;
    // A counter that was set back makes this large.
    if (rate == 0 || elapsed_ns > kTrustedNs) return ask(anchor);
    return advance(anchor, anchor.ns + static_cast<std::int64_t>(elapsed_ns));
  }

 private:
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
    const std::uint64_t ticks = __rdtsc();
    const std::int64_t ns = steady_clock().now().time_since_epoch().count();
    if (__rdtsc() - ticks > kLookTicks) return advance(anchor, ns);
    if (anchor.ns == 0) {
      anchor.ticks = ticks;
      anchor.ns = ns;
      return advance(anchor, ns);
    }
    if (ns_per_tick_.load(std::memory_order_relaxed) == 0) {
      if (ns - anchor.ns < kMeasuredNs) return advance(anchor, ns);
      ns_per_tick_.store(static_cast<double>(ns - anchor.ns) / static_cast<double>(ticks - anchor.ticks),
                         std::memory_order_relaxed);
    }
    anchor.ticks = ticks;
    anchor.ns = ns;
    return advance(anchor, ns);
  }

  mutable std::atomic<double> ns_per_tick_{0};  // 0: not measured yet
};

#endif

std::int64_t ns_of(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

class TickClock final : public Clock {
 public:
  TickClock() {
    timespec tick{};
    ::clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
    tick_ns_ = ns_of(tick);
  }
  TimePoint now() const override {
    timespec last{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &last);
    return TimePoint(Duration(ns_of(last) + tick_ns_));
  }

 private:
  std::int64_t tick_ns_;
};

}  // namespace

const Clock& tick_clock() {
  static const TickClock clock;
  return clock;
}

const Clock& quick_clock() {
#if defined(__x86_64__)
  static const CounterClock counter;
  static const Clock& chosen = counter_keeps_time() ? static_cast<const Clock&>(counter) : steady_clock();
  return chosen;
#else
  return steady_clock();
#endif
}

}  // namespace lockstep
