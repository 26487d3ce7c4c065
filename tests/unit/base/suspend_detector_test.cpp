#include "lockstep/base/suspend_detector.h"

#include <doctest/doctest.h>

namespace suspend_detector_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

struct Process {
  TimePoint now{1000s};
  SuspendDetector detector;

  void beat_for(Duration time) {
    for (const TimePoint end = now + time; now < end; now += SuspendDetector::kPeriod) detector.beat(now);
  }
};

}  // namespace

TEST_CASE("a process that beats was never suspended, even if it beats late") {
  Process process;
  process.beat_for(60s);
  process.now += 700ms;
  process.beat_for(1s);
  CHECK(process.detector.suspended() == 0s);
}

TEST_CASE("missing beats are a suspension, which is counted once, whoever sees it first") {
  Process process;
  process.beat_for(2s);
  const TimePoint last = process.now - SuspendDetector::kPeriod;
  SUBCASE("the beat") {
    process.detector.beat(last + 30s);
    process.detector.check(last + 30s);
  }
  SUBCASE("a check") {
    process.detector.check(last + 30s);
    process.detector.beat(last + 30s);
  }
  CHECK(process.detector.suspended() == 30s);
  process.now = last + 30s;
  process.beat_for(2s);
  CHECK(process.detector.suspended() == 30s);
  process.detector.check(process.now + 9s);
  CHECK(process.detector.suspended() > 38s);
}

TEST_CASE("before the first beat nothing counts") {
  SuspendDetector detector(5s);
  detector.check(TimePoint(1000s));
  detector.check(TimePoint(2000s));
  CHECK(detector.suspended() == 5s);
  detector.beat(TimePoint(3000s));
  CHECK(detector.suspended() == 5s);
}

}  // namespace suspend_detector_test
