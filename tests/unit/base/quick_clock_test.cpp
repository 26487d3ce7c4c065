#include "lockstep/base/quick_clock.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

// Reads for a while; how far from steady_clock() the readings were at most. The longest time if they ever went back.
Duration worst_error(Duration while_it) {
  const TimePoint end = steady_clock().now() + while_it;
  TimePoint last;
  Duration worst{};
  for (TimePoint before = steady_clock().now(); before < end;) {
    const TimePoint quick = quick_clock().now();
    const TimePoint after = steady_clock().now();
    if (quick < last) return Duration::max();
    last = quick;
    if (quick < before) worst = std::max<Duration>(worst, before - quick);
    if (quick > after) worst = std::max<Duration>(worst, quick - after);
    before = after;
  }
  return worst;
}

}  // namespace

TEST_CASE("it tells the time of the monotonic clock, and never goes back, in every thread") {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([] { CHECK(worst_error(100ms) < 100us); });
}

TEST_CASE("after a pause it is right again at once") {
  quick_clock().now();
  std::this_thread::sleep_for(60ms);
  CHECK(worst_error(1ms) < 100us);
}
