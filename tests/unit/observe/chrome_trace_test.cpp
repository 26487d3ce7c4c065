#include "lockstep/base/observe/chrome_trace.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/observe/common_clock.h"

namespace chrome_trace_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using nlohmann::json;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kWall = 1'800'000'000'000 * kMs;

// What one rank has recorded, by hand. Times in milliseconds of its host's monotonic clock.
struct Recording {
  explicit Recording(int rank, const std::string& host = "n1", std::int64_t wall_ms = 0) {
    snapshot.rank = rank;
    snapshot.world_size = 2;
    snapshot.pid = 800 + rank;
    snapshot.host = host;
    snapshot.job = "job";
    snapshot.wall_ns = kWall + wall_ms * kMs;
    make_group();
  }
  Recording& make_group() {
    FlightGroup group;
    group.number = static_cast<std::uint32_t>(snapshot.groups.size() + 1);
    group.rank = snapshot.rank;
    group.size = 2;
    std::string("world").copy(group.name, 5);
    snapshot.groups.push_back(group);
    return *this;
  }
  Recording& all_reduce(std::uint64_t sequence, std::int64_t begin, std::int64_t end) {
    FlightRecord record;
    record.number = snapshot.records.size() + 1;
    record.group = snapshot.groups.back().number;
    record.set_operation("all_reduce");
    record.set_reduction("sum");
    record.dtype = DType::f32;
    record.sequence = sequence;
    record.count = 1000;
    record.issued_ns = record.started_ns = begin * kMs;
    record.finished_ns = end * kMs;
    record.state = end == 0 ? FlightState::running : FlightState::done;
    snapshot.records.push_back(record);
    return *this;
  }
  Recording& phase(StepPhase kind, std::uint64_t step, std::int64_t begin, std::int64_t end) {
    FlightPhase phase;
    phase.number = snapshot.phases.size() + 1;
    phase.step = step;
    phase.model = 1;
    phase.phase = kind;
    phase.begin_ns = begin * kMs;
    phase.end_ns = end * kMs;
    phase.waiting_ns = kMs / 2;
    snapshot.phases.push_back(phase);
    return *this;
  }
  FlightSnapshot snapshot;
};

std::vector<json> events_of(const json& trace, const std::string& kind, const std::string& category = "") {
  std::vector<json> found;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == kind && (category.empty() || event["cat"] == category)) found.push_back(event);
  }
  return found;
}

std::vector<FlightSnapshot> two_ranks() {
  return {
      Recording(0)
          .phase(StepPhase::forward, 7, 1000, 1010)
          .phase(StepPhase::backward, 7, 1010, 1040)
          .phase(StepPhase::data, 8, 1040, 1041)
          .all_reduce(4, 1015, 1036)
          .all_reduce(5, 1020, 1037)
          .snapshot,
      Recording(1).phase(StepPhase::data, 7, 1000, 1020).all_reduce(4, 1030, 1036).all_reduce(5, 1031, 1038).snapshot};
}

}  // namespace

TEST_CASE("steps enclose their phases, and collectives have rows of their own") {
  const json trace = json::parse(chrome_trace(two_ranks()));
  CHECK(trace["baseTimeNanoseconds"] == kWall + 1000 * kMs);
  const auto steps = events_of(trace, "X", "user_annotation");
  REQUIRE(steps.size() == 3);
  CHECK(steps[0]["name"] == "step 7");
  CHECK(steps[0]["pid"] == 0);
  CHECK(steps[0]["ts"] == 0);
  CHECK(steps[0]["dur"] == 40'000);
  const auto phases = events_of(trace, "X", "phase");
  REQUIRE(phases.size() == 4);
  CHECK(phases[1]["name"] == "backward");
  CHECK(phases[1]["ts"] == 10'000);
  CHECK(phases[1]["dur"] == 30'000);
  CHECK(phases[1]["tid"] == steps[0]["tid"]);
  CHECK(phases[1]["args"]["waiting us"] == 500);
  const auto collectives = events_of(trace, "X", "collective");
  REQUIRE(collectives.size() == 4);
  CHECK(collectives[0]["tid"] != collectives[1]["tid"]);  // at the same time
  CHECK(collectives[0]["args"]["bytes"] == 4000);
  CHECK(collectives[0]["args"]["Seq"] == 4);
  CHECK(collectives[0]["args"]["Process Group Name"] == "world");
  std::vector<std::string> names;
  for (const json& event : events_of(trace, "M")) {
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
  }
  CHECK(names == std::vector<std::string>{"rank 0 (host n1, pid 800)", "rank 1 (host n1, pid 801)"});
}

TEST_CASE("an arrow goes from the rank that came last to the others, from span to span") {
  const json trace = json::parse(chrome_trace(two_ranks()));
  const auto from = events_of(trace, "s"), to = events_of(trace, "f");
  REQUIRE(from.size() == 2);
  REQUIRE(to.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(from[i]["pid"] == 1);
    CHECK(to[i]["pid"] == 0);
    CHECK(from[i]["id"] == to[i]["id"]);
    CHECK(to[i]["bp"] == "e");
    for (const json& end : {from[i], to[i]}) {
      const auto encloses = [&](const json& span) {
        const double begin = span["ts"], length = span["dur"], at = end["ts"];
        return span["pid"] == end["pid"] && span["tid"] == end["tid"] && begin <= at && at <= begin + length;
      };
      CHECK(std::ranges::any_of(events_of(trace, "X", "collective"), encloses));
    }
  }
}

TEST_CASE("groups of one name, made one after another, are not mixed") {
  std::vector<FlightSnapshot> snapshots;
  for (const int rank : {0, 1}) {
    snapshots.push_back(
        Recording(rank).all_reduce(1, 1000 + rank, 1010).make_group().all_reduce(1, 2001 - rank, 2010).snapshot);
  }
  std::vector<int> from;
  for (const json& arrow : events_of(json::parse(chrome_trace(snapshots)), "s")) from.push_back(arrow["pid"]);
  CHECK(from == std::vector<int>{1, 0});
}

TEST_CASE("the last steps, and what lies within their time") {
  auto snapshots = two_ranks();
  snapshots[0] = Recording(0)
                     .phase(StepPhase::forward, 6, 100, 110)
                     .phase(StepPhase::forward, 7, 1000, 1040)
                     .all_reduce(3, 105, 106)
                     .all_reduce(4, 1015, 1036)
                     .snapshot;
  const json trace = json::parse(chrome_trace(snapshots, 1));
  for (const json& event : events_of(trace, "X")) CHECK(event["ts"] >= 0);
  CHECK(events_of(trace, "X", "user_annotation").size() == 2);
  CHECK(events_of(trace, "X", "collective").size() == 3);
  CHECK(events_of(json::parse(chrome_trace(snapshots)), "X", "collective").size() == 4);
}

TEST_CASE("a collective that has not ended lasts until the last sign of any rank") {
  const std::vector<FlightSnapshot> snapshots{Recording(0).all_reduce(4, 1000, 0).snapshot,
                                              Recording(1).all_reduce(5, 1007, 1009).snapshot};
  const auto collectives = events_of(json::parse(chrome_trace(snapshots)), "X", "collective");
  REQUIRE(collectives.size() == 2);
  CHECK(collectives[0]["dur"] == 9000);
  CHECK(collectives[0]["args"]["state"] == "running");
}

TEST_CASE("recordings without anything in them make a trace without spans") {
  CHECK(events_of(json::parse(chrome_trace({Recording(0).snapshot})), "X").empty());
  CHECK(events_of(json::parse(chrome_trace({Recording(0).snapshot}, 5)), "X").empty());
}

TEST_CASE("ranks of one host keep their monotonic clock, whenever they started") {
  const std::vector<FlightSnapshot> snapshots{Recording(0).snapshot, Recording(1, "n1", 3).snapshot};
  CHECK(common_clock(snapshots) == std::vector<std::int64_t>{kWall, kWall});
}

TEST_CASE("a host whose clock is ahead is corrected: no rank leaves a collective before all have come to it") {
  // On n2 all times are the same in truth, but its wall clock is 50 ms ahead; it came to #1 last, and n1 to #2.
  const std::vector<FlightSnapshot> snapshots{
      Recording(0).all_reduce(1, 100, 121).all_reduce(2, 150, 152).snapshot,
      Recording(1, "n2", 50).all_reduce(1, 120, 122).all_reduce(2, 130, 151).snapshot};
  const auto offsets = common_clock(snapshots);
  CHECK(offsets[0] == kWall);
  CHECK(offsets[1] == kWall + kMs);  // the least change: n1 leaves #1 when n2 comes, 121 = 120 + 1
  // Clocks that contradict nothing stay.
  const std::vector<FlightSnapshot> right{Recording(0).all_reduce(1, 100, 121).snapshot,
                                          Recording(1, "n2", 1).all_reduce(1, 119, 121).snapshot};
  CHECK(common_clock(right)[1] == kWall + kMs);
}

}  // namespace chrome_trace_test
