#include "lockstep/base/failure_note.h"

#include <doctest/doctest.h>

#include "lockstep/base/wait_reports.h"

using namespace lockstep;
using namespace std::chrono_literals;

TEST_CASE("a failure note keeps what failed and the first line of why, until it is wiped off") {
  FailureNote note;
  CHECK_FALSE(note.is_set());
  note.note("forward of my model", "\nindex 3 is out of range\nException raised from ...");
  CHECK(note.is_set());
  CHECK(note.text() == "forward of my model: index 3 is out of range");
  note.note("backward of my model", std::string(10'000, 'x'));
  CHECK(note.text().size() < 1100);
  note.forget();
  CHECK_FALSE(note.is_set());
  CHECK(note.text().empty());
}

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
