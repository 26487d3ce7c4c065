// What is recorded of a group that another rank has ended.
#include <doctest/doctest.h>

#include <memory>

#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/comm/collective/arena_engine.h"
#include "tests/support/expect_error.h"
#include "tests/unit/collective/link_fixture.h"

namespace ended_group_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

TEST_CASE("a call that comes after the end of its group is recorded with who ended it") {
  auto arenas = make_local_arenas(2, {.segment_bytes = 8 << 20});
  ArenaEngine culprit(std::move(arenas[0]));
  ArenaEngine victim(std::move(arenas[1]));
  FlightRecorder recorder(FlightMemory::make_private({.rank = 1, .world_size = 2}));
  victim.set_flight_log(FlightLog(recorder, "world", 1, 2));
  culprit.abort("an exception ended its program");
  CHECK_ERROR(error_of([&] { victim.run({.kind = OpKind::barrier}, soon()); }), ErrorKind::aborted, "rank 0");
  const auto failure = recorder.memory().last_failure();
  REQUIRE(failure);
  CHECK(failure->kind == ErrorKind::aborted);
  CHECK(failure->peer == 0);
  CHECK_FALSE(failure->is_own);
}

}  // namespace ended_group_test
