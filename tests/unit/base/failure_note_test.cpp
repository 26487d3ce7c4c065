#include "lockstep/base/failure_note.h"

#include <doctest/doctest.h>

using namespace lockstep;
using namespace lockstep::internal;
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
