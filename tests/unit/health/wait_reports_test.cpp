#include "lockstep/comm/health/wait_reports.h"

#include <doctest/doctest.h>

#include <vector>

namespace wait_reports_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

TEST_CASE("who waits speaks after 30 s, 2 min, 10 min, and every 30 min, once each") {
  WaitReports reports;
  CHECK_FALSE(reports.is_due(29s));
  CHECK(reports.is_due(30s));
  CHECK_FALSE(reports.is_due(31s));
  CHECK_FALSE(reports.is_due(119s));
  CHECK(reports.is_due(125s));
  CHECK_FALSE(reports.is_due(599s));
  CHECK(reports.is_due(10min));
  CHECK(reports.next() == 30min);
  CHECK(reports.is_due(31min));
  CHECK(reports.next() == 60min);
  CHECK(reports.is_due(5h));  // it had been stopped
  CHECK(reports.next() == 5h + 30min);
  WaitReports never(Duration::max());
  CHECK_FALSE(never.is_due(1000h));
}

TEST_CASE("a wait with a clock of its own is told by the same schedule") {
  struct : Clock {
    TimePoint now() const override { return at; }
    TimePoint at{1000s};
  } clock;
  LongWait wait(30s, clock);
  std::vector<int> told;
  for (int second = 1; second <= 4000; ++second) {
    clock.at += 1s;
    if (const auto waited = wait.due()) {
      CHECK(*waited == std::chrono::seconds(second));
      told.push_back(second);
    }
  }
  CHECK(told == std::vector<int>{30, 120, 600, 1800, 3600});
}

}  // namespace wait_reports_test
