#include <doctest/doctest.h>
#include <unistd.h>

#include <deque>

#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/job/launch/flight_recordings.h"

namespace lateness_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

// What the ranks of a host record, here in one process.
class Ranks {
 public:
  explicit Ranks(int ranks) : recordings("job", 4, ranks, 4 + ranks) {
    for (int rank = 4; rank < 4 + ranks; ++rank) {
      recorders_.emplace_back(FlightMemory::inherit(::dup(recordings.fd(rank))));
    }
  }

  std::uint32_t group(int rank, const char* name) { return recorder(rank).add_group(name, rank, 8); }
  void begin(int rank, std::uint32_t group, std::uint64_t sequence, std::int64_t at_ms) {
    FlightRecord record;
    record.set_operation("all_gather");
    record.sequence = sequence;
    record.group = group;
    record.state = FlightState::running;
    record.issued_ns = record.started_ns = at_ms * kMillisecond;
    if (sequence == 0) record.started_ns = 0;  // queued
    recorder(rank).add(record);
  }

  FlightRecordings recordings;

 private:
  FlightRecorder& recorder(int rank) { return recorders_[static_cast<std::size_t>(rank - 4)]; }

  std::deque<FlightRecorder> recorders_;
};

}  // namespace

TEST_CASE("a rank is as late as its last collective was begun after the first rank had begun it") {
  Ranks ranks(3);
  for (const int rank : {4, 5, 6}) {
    const std::uint32_t other = rank == 5 ? ranks.group(rank, "data") : 0;  // numbers of groups differ between ranks
    const std::uint32_t world = ranks.group(rank, "world");
    ranks.begin(rank, world, 1, 10);
    ranks.begin(rank, world, 2, rank == 6 ? 1000 : 100 + rank);
    if (rank == 4) ranks.begin(rank, world, 3, 200);
    if (rank == 5) ranks.begin(rank, other, 2, 50);
  }
  CHECK(ranks.recordings.last_operation(6).text == "all_gather #2, not finished");
  CHECK(ranks.recordings.last_operation(6).lateness_ns == 896 * kMillisecond);
  CHECK(ranks.recordings.last_operation(4).lateness_ns == 0);
  CHECK(ranks.recordings.last_operation(5).lateness_ns == 0);
}

TEST_CASE("where nothing compares, a lateness is not known") {
  Ranks alone(1);
  alone.begin(4, alone.group(4, "world"), 1, 10);
  CHECK(alone.recordings.last_operation(4).text == "all_gather #1, not finished");
  CHECK(!alone.recordings.last_operation(4).lateness_ns);
  Ranks two(2);
  CHECK(two.recordings.last_operation(4).text.empty());
  CHECK(!two.recordings.last_operation(4).lateness_ns);
  two.begin(4, two.group(4, "world"), 0, 10);
  CHECK(!two.recordings.last_operation(4).lateness_ns);
}

TEST_CASE("only the last operations of other ranks are looked at") {
  Ranks ranks(2);
  const std::uint32_t mine = ranks.group(4, "world");
  const std::uint32_t other = ranks.group(5, "world");
  ranks.begin(4, mine, 1, 5000);
  for (std::uint64_t sequence = 1; sequence <= 1000; ++sequence) ranks.begin(5, other, sequence, 1);
  CHECK(ranks.recordings.last_operation(4).lateness_ns == 0);
}

}  // namespace lateness_test
