#include "lockstep/job/elastic/unacknowledged.h"

#include <doctest/doctest.h>

#include <chrono>

namespace unacknowledged_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

TEST_CASE("what stays unacknowledged counts from the look that found it") {
  Unacknowledged unacknowledged;
  const TimePoint begin{};
  CHECK(unacknowledged.lasts(begin) == 0s);
  unacknowledged.look({.acknowledged = 10, .waits = false}, begin);
  CHECK(unacknowledged.lasts(begin + 60s) == 0s);
  unacknowledged.look({.acknowledged = 10, .waits = true}, begin + 60s);
  unacknowledged.look({.acknowledged = 10, .waits = true}, begin + 61s);
  CHECK(unacknowledged.lasts(begin + 62s) == 2s);
}

TEST_CASE("any acknowledgement begins the count anew") {
  Unacknowledged unacknowledged;
  const TimePoint begin{};
  unacknowledged.look({.acknowledged = 10, .waits = true}, begin);
  unacknowledged.look({.acknowledged = 11, .waits = true}, begin + 5s);
  CHECK(unacknowledged.lasts(begin + 6s) == 1s);
  unacknowledged.look({.acknowledged = 11, .waits = false}, begin + 7s);
  CHECK(unacknowledged.lasts(begin + 9s) == 0s);
}

TEST_CASE("a gap is remembered once it is over") {
  Unacknowledged unacknowledged;
  const TimePoint begin = TimePoint{} + 1h;
  unacknowledged.look({.acknowledged = 10, .waits = true}, begin);
  unacknowledged.look({.acknowledged = 11, .waits = false}, begin + 1s);
  CHECK(unacknowledged.last_gap() == TimePoint{});
  unacknowledged.look({.acknowledged = 11, .waits = true}, begin + 2s);
  unacknowledged.look({.acknowledged = 12, .waits = false}, begin + 4s);
  CHECK(unacknowledged.last_gap() == begin + 4s);
  unacknowledged.look({.acknowledged = 12, .waits = false}, begin + 9s);
  CHECK(unacknowledged.last_gap() == begin + 4s);
}

TEST_CASE("a caller that was stopped takes no old silence for a new one") {
  Unacknowledged unacknowledged;
  const TimePoint begin{};
  unacknowledged.look({.acknowledged = 10, .waits = true}, begin);  // a heartbeat on its way
  // It was acknowledged during the stop, and something new was sent just before this look.
  unacknowledged.look({.acknowledged = 20, .waits = true}, begin + 60s);
  CHECK(unacknowledged.lasts(begin + 60s) == 0s);
}

}  // namespace unacknowledged_test
