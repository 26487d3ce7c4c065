#include "lockstep/base/tsc_clock.h"

#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>

#include "lockstep/base/counter_clock_internal.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lockstep::internal {
namespace {

#if defined(__x86_64__)

// A counter that the kernel itself keeps time by runs at one rate on all cores and never stops.
bool counter_keeps_time() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return file >> source && source == "tsc";
}

struct TimeStampCounter {
  static std::uint64_t now() { return __rdtsc(); }
};
struct SteadyTime {
  static TimePoint now() { return steady_clock().now(); }
};

#endif

std::int64_t ns_of(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

class CoarseClock final : public Clock {
 public:
  CoarseClock() {
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

const Clock& coarse_clock() {
  static const Clock& clock = *new CoarseClock;
  return clock;
}

const Clock& tsc_clock() {
#if defined(__x86_64__)
  static const auto& counter = *new CounterClock<TimeStampCounter, SteadyTime>;
  static const Clock& chosen = counter_keeps_time() ? static_cast<const Clock&>(counter) : steady_clock();
  return chosen;
#else
  return steady_clock();
#endif
}

}  // namespace lockstep::internal
