#include "lockstep/base/long_wait.h"

#include <doctest/doctest.h>

using namespace lockstep;
using namespace std::chrono_literals;

TEST_CASE("a long wait is told after a while, and then ever more rarely") {
  struct : Clock {
    TimePoint now() const override { return at; }
    TimePoint at{1000s};
  } clock;
  LongWait wait(30s, clock);
  int told = 0;
  for (int second = 1; second <= 1000; ++second) {
    clock.at += 1s;
    if (const auto waited = wait.due()) {
      CHECK(*waited == std::chrono::seconds(second));
      ++told;
    }
  }
  CHECK(told == 6);  // 30, 60, 120, 240, 480, 960
}
