#include "lockstep/comm/collective/call_meter.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace call_meter_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(time); }

}  // namespace

TEST_CASE("waiting and moving add up, with what is under way") {
  CallMeter meter;
  CHECK(meter.at(at(5s)).waiting == 0s);
  meter.waits(at(10s));
  CHECK(meter.is_waiting());
  CHECK(meter.at(at(12s)).waiting == 2s);
  meter.waits(at(13s));  // nothing new
  meter.moves(at(14s));
  CHECK(meter.is_moving());
  CHECK(meter.at(at(15s)).waiting == 4s);
  CHECK(meter.at(at(15s)).moving == 1s);
  meter.rests(at(17s));
  CHECK(meter.at(at(30s)).waiting == 4s);
  CHECK(meter.at(at(30s)).moving == 3s);
}

TEST_CASE("a wait that is said to begin before the end of the last one begins there") {
  CallMeter meter;
  meter.waits(at(10s));
  meter.rests(at(15s));
  meter.waits(at(12s));
  meter.rests(at(16s));
  CHECK(meter.at(at(20s)).waiting == 6s);
  CHECK(meter.at(at(9s)).waiting == 6s);  // a reader whose clock is behind
}

TEST_CASE("a reader in another thread sees sums that belong together") {
  CallMeter meter;
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    Duration before{};
    while (!is_over) {
      const CallTimes times = meter.at(at(0s));
      // Of each second, it moves in one half, and only after it has waited in the other.
      CHECK(times.waiting >= times.moving);
      CHECK(times.waiting - times.moving <= 500ms);
      CHECK(times.waiting >= before);
      before = times.waiting;
    }
  });
  for (int second = 1; second < 20'000; ++second) {
    meter.waits(at(second * 1s));
    meter.moves(at(second * 1s + 500ms));
    meter.rests(at(second * 1s + 1s));
  }
  is_over = true;
  reader.join();
}

}  // namespace call_meter_test
