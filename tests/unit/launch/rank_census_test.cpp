#include "lockstep/job/launch/rank_census.h"

#include <doctest/doctest.h>

#include <memory>

#include "lockstep/base/observe/flight_recorder.h"

namespace rank_census_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

struct Rank {
  FlightRecorder recorder{FlightMemory::make_private({})};
  std::uint32_t group;

  explicit Rank(std::string_view name = "world") : group(recorder.add_group(name, 0, 2)) {}
  void begin(std::uint64_t sequence, std::int64_t at_ns) {
    FlightRecord record;
    record.set_operation("barrier");
    record.group = group;
    record.sequence = sequence;
    record.category = FlightCategory::collective;
    record.state = FlightState::running;
    record.issued_ns = record.started_ns = at_ns;
    recorder.add(record);
  }
};

}  // namespace

TEST_CASE("lateness is of collectives that all ranks have begun") {
  Rank a;
  Rank b;
  const std::vector<const FlightMemory*> memories{&a.recorder.memory(), &b.recorder.memory()};
  CHECK(mean_lateness_ns({}).empty());
  CHECK(mean_lateness_ns(memories).empty());
  a.begin(1, 1000);
  CHECK(mean_lateness_ns(memories).empty());
  b.begin(1, 1300);
  a.begin(2, 2100);
  b.begin(2, 2000);
  a.begin(3, 3000);
  CHECK(mean_lateness_ns(memories) == std::vector<std::int64_t>{50, 150});
  Rank other("another");
  other.begin(1, 1);
  CHECK(mean_lateness_ns({&a.recorder.memory(), &other.recorder.memory()}).empty());
}

}  // namespace rank_census_test
