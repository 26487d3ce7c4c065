#include "lockstep/base/suspend_detector.h"

#include <doctest/doctest.h>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

struct Beating {
  TimePoint now{1000s};
  SuspendDetector heart;

  void beat_for(Duration time) {
    for (const TimePoint end = now + time; now < end; now += SuspendDetector::kPeriod) heart.beat(now);
  }
};

}  // namespace

TEST_CASE("a process that beats was never stopped, also if it beats late") {
  Beating process;
  process.beat_for(60s);
  process.now += 700ms;
  process.beat_for(1s);
  CHECK(process.heart.stopped() == 0s);
}

TEST_CASE("beats that are missing are a stop, which is counted once, whoever sees it first") {
  Beating process;
  process.beat_for(2s);
  const TimePoint last = process.now - SuspendDetector::kPeriod;
  SUBCASE("the beat") {
    process.heart.beat(last + 30s);
    process.heart.look(last + 30s);
  }
  SUBCASE("one who looks") {
    process.heart.look(last + 30s);
    process.heart.beat(last + 30s);
  }
  CHECK(process.heart.stopped() == 30s);
  process.now = last + 30s;
  process.beat_for(2s);
  CHECK(process.heart.stopped() == 30s);
  process.heart.look(process.now + 9s);
  CHECK(process.heart.stopped() > 38s);
}

TEST_CASE("where nothing has ever beaten, nothing is a stop") {
  SuspendDetector heart(5s);
  heart.look(TimePoint(1000s));
  heart.look(TimePoint(2000s));
  CHECK(heart.stopped() == 5s);
  heart.beat(TimePoint(3000s));
  CHECK(heart.stopped() == 5s);
}
