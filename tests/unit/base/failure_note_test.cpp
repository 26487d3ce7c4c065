#include "lockstep/base/failure_note.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

namespace failure_note_test {

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

TEST_CASE("what fails in a part of a part is noted for all that it is a part of, also if one of them is gone") {
  const auto world = std::make_shared<FailureNote>();
  auto half = std::make_shared<FailureNote>();
  FailureNote quarter;
  half->set_whole(world);
  quarter.set_whole(half);
  quarter.note_in_whole("a part of the group", "rank 1 has died");
  CHECK(world->text() == "a part of the group: rank 1 has died");
  CHECK(half->text() == world->text());
  CHECK_FALSE(quarter.is_set());
  world->forget();
  half.reset();
  quarter.note_in_whole("a part of the group", "rank 1 has died");
  CHECK(world->is_set());
}

}  // namespace failure_note_test
