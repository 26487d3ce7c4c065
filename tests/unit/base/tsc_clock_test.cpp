#include "lockstep/base/tsc_clock.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "lockstep/base/counter_clock_internal.h"

namespace tsc_clock_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

// Reads for a while; how far from steady_clock() the readings were at most. The longest time if they ever went back.
Duration worst_error(Duration while_it) {
  const TimePoint end = steady_clock().now() + while_it;
  TimePoint last;
  Duration worst{};
  for (TimePoint before = steady_clock().now(); before < end;) {
    const TimePoint quick = tsc_clock().now();
    const TimePoint after = steady_clock().now();
    if (quick < last) return Duration::max();
    last = quick;
    if (quick < before) worst = std::max<Duration>(worst, before - quick);
    if (quick > after) worst = std::max<Duration>(worst, quick - after);
    before = after;
  }
  return worst;
}

// A machine whose time and counter the test moves.
struct Machine {
  static inline std::uint64_t ticks = 1'000'000;
  static inline TimePoint time{1s};
  static inline double ticks_per_ns = 2;

  static void pass(Duration duration) {
    time += duration;
    ticks += static_cast<std::uint64_t>(static_cast<double>(duration.count()) * ticks_per_ns);
  }
};
struct MachineCounter {
  static std::uint64_t now() { return Machine::ticks; }
};
struct MachineTime {
  static TimePoint now() { return Machine::time; }
};

}  // namespace

TEST_CASE("a counter that changes its rate, or is set back, is found out") {
  const CounterClock<MachineCounter, MachineTime> clock;
  const auto worst_of = [&](int steps) {
    Duration worst{};
    for (int i = 0; i < steps; ++i) {
      const TimePoint before = clock.now();
      Machine::pass(1ms);
      const TimePoint now = clock.now();
      CHECK(now >= before);
      worst = std::max<Duration>(worst, now > Machine::time ? now - Machine::time : Machine::time - now);
    }
    return worst;
  };
  CHECK(worst_of(200) < 1us);
  for (const double ticks_per_ns : {1.0, 3.0, 1.5}) {  // the machine was moved
    Machine::ticks_per_ns = ticks_per_ns;
    CHECK(worst_of(200) < 100ms);  // as long as it is trusted
    CHECK(worst_of(200) < 1us);
  }
  Machine::ticks = 5;
  CHECK(worst_of(100) < 30ms);
  CHECK(worst_of(100) < 1us);
}

TEST_CASE("it tells the time of the monotonic clock, and never goes back, in every thread") {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([] { CHECK(worst_error(100ms) < 100us); });
}

TEST_CASE("after a pause it is right again at once") {
  tsc_clock().now();
  std::this_thread::sleep_for(60ms);
  CHECK(worst_error(1ms) < 100us);
}

}  // namespace tsc_clock_test
