// How receive windows grow, in virtual numbers.
#include "lockstep/comm/transport/flow_window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace flow_window_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

// A link that carries as much as the window allows, and the round trips until the window no longer grows.
struct Flow {
  double capacity;
  Duration round_trip;
  std::size_t window = kFirstWindow;

  // The peer may send no more before the report of what was taken returns, which may lack up to a quarter.
  double rate(double share = 1) const {
    return std::min(capacity, share * static_cast<double>(window) / seconds(round_trip));
  }
  int grow() {
    for (int trips = 0;; ++trips) {
      const std::size_t wanted = wanted_window(window, {rate(), round_trip});
      const std::size_t next = granted_window(window, wanted, 0);
      if (next == window) return trips;
      window = next;
    }
  }
};

}  // namespace

TEST_CASE("a window grows until the link is full, and in few round trips") {
  for (const double gigabits : {0.1, 1.0, 2.0}) {
    for (const Duration round_trip : {1ms, 30ms, 200ms}) {
      Flow flow{gigabits * 125e6, round_trip};
      CAPTURE(gigabits);
      CHECK(flow.grow() <= 5);
      CHECK(flow.rate(0.75) == flow.capacity);
      CHECK(static_cast<double>(flow.window) <=
            std::max<double>(kFirstWindow, 3 * flow.capacity * seconds(round_trip)));
    }
  }
  Flow far{125e6, 300ms};  // 37.5 MB in flight
  far.grow();
  CHECK(far.rate(0.75) == far.capacity);
  CHECK(far.window == 112'500'000);
}

TEST_CASE("a window that does not limit stays small, and none is larger than the bound") {
  Flow near{1.25e9, 100us};  // 10 Gbit/s
  CHECK(near.grow() == 0);
  CHECK(near.window == kFirstWindow);
  Flow unbounded{1e12, 1s};
  unbounded.grow();
  CHECK(unbounded.window == kLargestWindow);
  CHECK(wanted_window(kLargestWindow, {1e30, 1s}) == kLargestWindow);
  CHECK(wanted_window(kFirstWindow, {}) == kFirstWindow);
}

TEST_CASE("a group that does not keep up gets no larger window, and no wish shrinks one") {
  CHECK(granted_window(1000, 5000, 500) == 5000);
  CHECK(granted_window(1000, 5000, 501) == 1000);
  CHECK(granted_window(1000, 10, 0) == 1000);
  CHECK(granted_window(1000, std::size_t{1} << 40, 0) == kLargestWindow);
}

}  // namespace flow_window_test
