#include "lockstep/base/observe/flight_report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace flight_report_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

// Makes snapshots by hand.
struct Rank {
  explicit Rank(int rank) {
    snapshot.rank = rank;
    snapshot.world_size = 3;
    snapshot.pid = 800 + rank;
    snapshot.host = "n1";
    snapshot.job = "job";
  }
  Rank& group(const std::string& name, int size = 3) {
    FlightGroup group;
    group.number = static_cast<std::uint32_t>(snapshot.groups.size()) + 1;
    group.rank = snapshot.rank;
    group.size = size;
    std::copy(name.begin(), name.end(), group.name);
    snapshot.groups.push_back(group);
    return *this;
  }
  Rank& add(const std::string& operation, std::uint64_t sequence, FlightState state, std::uint64_t count = 0,
            std::uint32_t group = 1) {
    FlightRecord record;
    record.number = ++snapshot.operations;
    record.group = group;
    record.set_operation(operation);
    record.sequence = sequence;
    record.state = state;
    record.count = count;
    record.issued_ns = record.started_ns = 1'000'000;
    if (state == FlightState::done || state == FlightState::failed) record.finished_ns = 3'500'000;
    if (state == FlightState::failed) record.error = static_cast<int>(ErrorKind::timeout) + 1;
    snapshot.records.push_back(record);
    return *this;
  }
  FlightSnapshot snapshot;
};

bool has_line(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("the rank that is behind stands first, with where it is and where the others are") {
  Rank behind(2);
  behind.group("world").add("all_reduce", 41, FlightState::done, 1024);
  behind.snapshot.ended = "was killed by SIGKILL";
  std::vector<FlightSnapshot> snapshots;
  for (int rank = 0; rank < 2; ++rank) {
    snapshots.push_back(Rank(rank)
                            .group("world")
                            .add("all_reduce", 41, FlightState::done, 1024)
                            .add("barrier", 42, FlightState::failed)
                            .snapshot);
  }
  snapshots.push_back(behind.snapshot);
  const auto reports = report_of(snapshots);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].differ);
  CHECK(reports[0].mismatch.empty());
  const auto lines = report_lines(snapshots, 1);
  CHECK(has_line(lines, "rank 2 (host n1, pid 802) was killed by SIGKILL"));
  const auto first = std::ranges::find(lines, "  rank 2 is at all_reduce #41 of 1024 uint8, which it finished");
  REQUIRE(first + 1 < lines.end());
  CHECK(*(first + 1) == "  ranks 0, 1 are at barrier #42, which failed (timeout)");
  CHECK(has_line(lines, "rank 0 (host n1, pid 800), the last 1 of 2 operations:"));
  CHECK(has_line(lines, "world: barrier #42  failed, 2.500 ms (timeout)"));
  CHECK_FALSE(has_line(report_lines(snapshots, 0), "operations:"));
}

TEST_CASE("ranks that called different things at the same place are told apart") {
  const std::vector<FlightSnapshot> snapshots{
      Rank(0).group("world").add("all_reduce", 7, FlightState::failed, 8).snapshot,
      Rank(1).group("world").add("all_reduce", 7, FlightState::failed, 4).snapshot};
  const auto reports = report_of(snapshots);
  REQUIRE(reports[0].mismatch.size() == 2);
  const auto lines = report_lines(snapshots, 0);
  CHECK(has_line(lines, "called differently"));
  CHECK(has_line(lines, "rank 0: all_reduce #7 of 8 uint8"));
  CHECK(has_line(lines, "rank 1: all_reduce #7 of 4 uint8"));
}

// feature: K-06
TEST_CASE("the report tells for each collective who came last, and how much later than the first") {
  std::vector<FlightSnapshot> snapshots;
  for (int rank = 0; rank < 3; ++rank) {
    Rank made(rank);
    made.group("world").add("all_reduce", 1, FlightState::done).add("barrier", 2, FlightState::done);
    if (rank != 1) made.add("barrier", 3, FlightState::running);
    // Rank 2 is another host, whose clock began 7 ms later.
    made.snapshot.monotonic_ns = rank == 2 ? 0 : 7'000'000;
    if (rank == 2) made.snapshot.host = "n2";
    made.snapshot.records[0].started_ns += (rank == 2 ? -7 : 7) * 1'000'000;
    made.snapshot.records[1].started_ns += (rank == 0 ? 60 : 20 + 20 * rank) * 1'000'000;
    for (std::size_t i = 0; i < 2; ++i) made.snapshot.records[i].finished_ns = 90'000'000;
    snapshots.push_back(made.snapshot);
  }
  const auto arrivals = report_of(snapshots).at(0).arrivals;
  REQUIRE(arrivals.size() == 2);  // of #3, which rank 1 has not begun, nothing is known
  CHECK(arrivals[0].record.sequence == 1);
  CHECK(arrivals[0].first == 2);
  CHECK(arrivals[0].spread_ns == 7'000'000);
  CHECK(arrivals[1].last == 2);
  CHECK(arrivals[1].spread_ns == 27'000'000);
  const auto lines = report_lines(snapshots, 1);
  CHECK(has_line(lines, "the last 1 that all ranks entered, and how much later the last rank entered than the first:"));
  CHECK(has_line(lines, "    barrier #2: rank 2 by 27.000 ms"));
  CHECK_FALSE(has_line(lines, "all_reduce #1: rank"));
}

TEST_CASE("groups are apart, and queued collectives are counted") {
  const std::vector<FlightSnapshot> snapshots{Rank(0)
                                                  .group("world")
                                                  .group("half", 1)
                                                  .add("barrier", 1, FlightState::done)
                                                  .add("all_gather", 1, FlightState::running, 3, 2)
                                                  .add("all_gather", 0, FlightState::issued, 3, 2)
                                                  .snapshot,
                                              Rank(1).group("world").add("barrier", 1, FlightState::done).snapshot,
                                              Rank(2).snapshot};
  const auto reports = report_of(snapshots);
  REQUIRE(reports.size() == 2);
  CHECK_FALSE(reports[0].differ);
  CHECK(reports[0].statuses.size() == 2);
  CHECK(reports[1].statuses.size() == 1);
  CHECK(reports[1].statuses[0].queued == 1);
  const auto lines = report_lines(snapshots, 5);
  CHECK(has_line(lines, "group world of 3 ranks: all are at the same place"));
  CHECK(has_line(lines, "rank 0 is at all_gather #1 of 3 uint8, inside"));
  CHECK(has_line(lines, "up to 1 more were queued"));
}

TEST_CASE("a rank that never recorded is said so") {
  Rank silent(1);
  silent.snapshot.pid = 0;
  silent.snapshot.ended = "exited with code 2";
  const auto lines = report_lines({Rank(0).group("world").snapshot, silent.snapshot}, 5);
  CHECK(has_line(lines, "rank 1 never joined a group; exited with code 2"));
  CHECK(has_line(lines, "rank 0 is in no recorded collective"));
}

}  // namespace flight_report_test
