#include "lockstep/base/observe/flight_recorder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "tests/support/expect_error.h"

namespace flight_recorder_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

FlightRecord record_of(std::string_view operation, std::uint64_t sequence, std::uint64_t count = 0) {
  FlightRecord record;
  record.set_operation(operation);
  record.sequence = sequence;
  record.count = count;
  return record;
}

FlightRecorder private_recorder() { return FlightRecorder(FlightMemory::make_private({})); }

FlightRecord found(const FlightRecorder& recorder, std::uint64_t number) {
  const auto record = recorder.find(number);
  REQUIRE(record.has_value());
  return *record;
}

}  // namespace

TEST_CASE("an operation is recorded from its issue to its end") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 1, 4);
  FlightRecord asked = record_of("all_reduce", 0, 1024);
  asked.set_reduction("sum");
  asked.dtype = DType::f32;
  const FlightTicket queued = log.issue(asked);
  CHECK(found(recorder, queued.number).state == FlightState::issued);
  CHECK(describe(found(recorder, queued.number)) == "all_reduce(sum) of 1024 float32");
  CHECK_FALSE(log.last_collective());

  asked.sequence = 41;
  FlightTicket ticket = log.start(asked, queued);
  CHECK(ticket.number == queued.number);
  CHECK(found(recorder, ticket.number).state == FlightState::running);
  CHECK(log.last_collective()->sequence == 41);

  const TimePoint end = log.finish(ticket);
  const FlightRecord record = found(recorder, ticket.number);
  CHECK(record.state == FlightState::done);
  CHECK(describe(record) == "all_reduce(sum) #41 of 1024 float32");
  CHECK(record.issued_ns <= record.started_ns);
  CHECK(record.started_ns <= record.finished_ns);
  CHECK(record.finished_ns == end.time_since_epoch().count());
}

TEST_CASE("a failure is recorded once, with whom it names") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  FlightTicket ticket = log.start(record_of("barrier", 1));
  FlightTicket copy = ticket;
  log.fail(ticket, Error(ErrorKind::peer_lost, "gone", {.peer = 1}));
  log.fail(copy, Error(ErrorKind::aborted, "later"));
  log.finish(copy);
  const FlightRecord record = found(recorder, ticket.number);
  CHECK(record.state == FlightState::failed);
  CHECK(record.error == static_cast<int>(ErrorKind::peer_lost) + 1);
  CHECK(record.error_peer == 1);
}

TEST_CASE("a log without a recorder records nothing, and still tells the time") {
  const FlightLog log;
  FlightTicket ticket = log.start(record_of("barrier", 1));
  CHECK(ticket.number == 0);
  CHECK(log.finish(ticket) > TimePoint{});
  CHECK_FALSE(log.last_collective());
}

TEST_CASE("the oldest operations make room, and their late ends change nothing") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  FlightTicket first = log.start(record_of("barrier", 1));
  FlightTicket last;
  for (std::uint64_t i = 0; i < flight::kSlots; ++i) last = log.start(record_of("all_gather", i + 2, 7));
  CHECK(last.number == first.number + flight::kSlots);
  CHECK_FALSE(recorder.find(first.number));
  log.finish(first);
  CHECK(describe(found(recorder, last.number)) == "all_gather #1025 of 7 uint8");
  CHECK(found(recorder, last.number).state == FlightState::running);
  CHECK(found(recorder, 2).sequence == 2);
}

TEST_CASE("a record that was begun and not completed is not believed") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  const FlightTicket ticket = log.start(record_of("barrier", 1));
  flight::Slot& slot = recorder.memory().slot(ticket.number);
  slot.version |= 1;  // as a process leaves it that dies while it writes
  CHECK_FALSE(recorder.find(ticket.number));
  FlightRecord unused;
  CHECK(read_slot(slot, unused) == flight::SlotState::torn);
  // Whoever comes round to that slot takes the next one.
  FlightTicket next;
  for (std::uint64_t i = 0; i < flight::kSlots; ++i) next = log.start(record_of("barrier", i + 2));
  CHECK(next.number == ticket.number + flight::kSlots + 1);
}

TEST_CASE("names that are too long are cut") {
  FlightRecord record = record_of("an operation with a name that is far too long to be kept", 1);
  record.number = 1;
  CHECK(std::string_view(record.operation) == "an operation with a nam");
  CHECK(is_sound(record));
}

TEST_CASE("eight threads record while others read, and no record is mixed") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> whole{0}, mixed{0};
  const auto read_all = [&] {
    while (!done) {
      for (std::uint64_t i = 0; i < flight::kSlots; ++i) {
        FlightRecord record;
        if (read_slot(recorder.memory().slot(i), record) != flight::SlotState::whole) continue;
        ++whole;
        // Every writer keeps these three equal.
        if (record.count != record.name || record.tag != static_cast<std::uint32_t>(record.count)) ++mixed;
      }
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back(read_all);
  std::vector<std::thread> writers;
  for (std::uint64_t thread = 0; thread < 8; ++thread) {
    writers.emplace_back([&, thread] {
      for (std::uint64_t i = 1; i <= 3000; ++i) {
        FlightRecord record = record_of("all_reduce", i, thread * 1'000'000 + i);
        record.name = record.count;
        record.tag = static_cast<std::uint32_t>(record.count);
        FlightTicket ticket = log.start(record, i % 3 == 0 ? log.issue(record) : FlightTicket{});
        if (i % 5 == 0) {
          log.fail(ticket, Error(ErrorKind::timeout, ""));
        } else {
          log.finish(ticket);
        }
      }
    });
  }
  for (auto& each : writers) each.join();
  done = true;
  for (auto& each : readers) each.join();
  CHECK(whole > 0);
  CHECK(mixed == 0);
  std::size_t over = 0;
  for (std::uint64_t i = 0; i < flight::kSlots; ++i) {
    FlightRecord record;
    REQUIRE(read_slot(recorder.memory().slot(i), record) == flight::SlotState::whole);
    over += record.state == FlightState::done || record.state == FlightState::failed ? 1 : 0;
  }
  CHECK(over >= flight::kSlots - 64);  // an update that met a later operation in its slot is dropped
}

// fault: S8
TEST_CASE("memory of a launcher is taken over; other descriptors are refused") {
  const FlightMemory made = FlightMemory::make_shared({.rank = 2, .world_size = 3, .job_id = "job"});
  CHECK_FALSE(made.is_signed());
  {
    FlightRecorder recorder(FlightMemory::inherit(::dup(made.fd())));
    const FlightLog log(recorder, "world", 2, 3);
    log.start(record_of("barrier", 9));
  }
  CHECK(made.is_signed());
  CHECK(made.header().pid == ::getpid());
  FlightRecord record;
  REQUIRE(read_slot(made.slot(1), record) == flight::SlotState::whole);
  CHECK(describe(record) == "barrier #9");

  CHECK_ERROR(error_of([] { FlightMemory::inherit(9999); }), ErrorKind::corrupt_data, "descriptor 9999",
              "does not hold a flight recording");
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK_ERROR(error_of([&] { FlightMemory::inherit(null.get()); }), ErrorKind::corrupt_data,
              "does not hold a flight recording");
  made.header().version = 77;
  const int copy = ::dup(made.fd());
  CHECK_ERROR(error_of([&] { FlightMemory::inherit(copy); }), ErrorKind::corrupt_data, "another version");
}

TEST_CASE("recording costs little") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  constexpr int kOperations = 200'000;
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const TimePoint start = steady_clock().now();
    for (int i = 0; i < kOperations; ++i) {
      FlightTicket ticket = log.start(record_of("all_reduce", static_cast<std::uint64_t>(i), 1024));
      log.finish(ticket);
    }
    best = std::min(best, seconds(steady_clock().now() - start) / kOperations);
  }
  std::printf("recording one operation: %.1f ns\n", best * 1e9);
  CHECK(best < 500e-6);  // a bound for sanitizers on busy machines; the figure is for people
}

TEST_CASE("ranks of a part are known by a series, or not") {
  CHECK(JobRanks::of(std::vector{4}).at(0) == 4);
  CHECK(JobRanks::of(std::vector{2, 3, 4}).at(2) == 4);
  CHECK(JobRanks::of(std::vector{6, 4, 2}).at(2) == 2);
  CHECK(JobRanks::of(std::vector{6, 4, 2}).at(4) == -1);
  CHECK(JobRanks::of(std::vector{0, 1, 3}).at(0) == -1);
  CHECK(JobRanks{.first = 1 << 30, .stride = 1 << 30}.at(1 << 30) == -1);
  CHECK(JobRanks().at(0) == -1);
}

TEST_CASE("a launcher reads how the operation that ended last failed, and whom it names") {
  const FlightMemory memory = FlightMemory::make_shared({.rank = 1, .world_size = 4});
  FlightRecorder recorder(FlightMemory::inherit(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)));
  const FlightLog world(recorder, "world", 1, 4);
  const FlightLog part(recorder, "world/part", 0, 2);
  CHECK_FALSE(memory.last_failure());
  memory.note_failed_start(ErrorKind::timeout, -1);
  REQUIRE(memory.last_failure());
  CHECK(memory.last_failure()->kind == ErrorKind::timeout);
  CHECK(memory.last_failure()->peer == -1);
  memory.note_failed_start(ErrorKind::peer_lost, kMostRanks - 1);
  CHECK(memory.last_failure()->kind == ErrorKind::peer_lost);
  CHECK(memory.last_failure()->peer == kMostRanks - 1);

  FlightTicket done = world.start(record_of("barrier", 1));
  world.finish(done);
  world.start(record_of("all_reduce", 2));  // still running when the process ends
  CHECK_FALSE(memory.last_failure());

  FlightTicket lost = world.start(record_of("all_reduce", 3));
  world.fail(lost, Error(ErrorKind::peer_lost, "rank 2 has died", {.rank = 1, .peer = 2}));
  REQUIRE(memory.last_failure());
  CHECK(memory.last_failure()->kind == ErrorKind::peer_lost);
  CHECK(memory.last_failure()->peer == 2);
  CHECK_FALSE(memory.last_failure()->is_own);
  for (std::uint64_t number = 0; number < 3 * flight::kGroups; ++number) recorder.add_group("world/more", 0, 2);
  CHECK(memory.last_failure()->peer == 2);

  // Ranks of a part of the job have other numbers; which they are in the job is recorded where they are a series.
  FlightTicket in_part = part.start(record_of("broadcast", 1));
  part.fail(in_part, Error(ErrorKind::timeout, "rank 1 did not come", {.rank = 0, .peer = 1}));
  CHECK(memory.last_failure()->kind == ErrorKind::timeout);
  CHECK(memory.last_failure()->peer == -1);

  const FlightLog odd(recorder, "world/odd", 0, 2, JobRanks::of(std::vector{1, 3}));
  FlightTicket in_odd = odd.start(record_of("broadcast", 1));
  odd.fail(in_odd, Error(ErrorKind::peer_lost, "rank 1 has died", {.rank = 0, .peer = 1}));
  CHECK(memory.last_failure()->peer == 3);

  FlightTicket own = world.start(record_of("barrier", 4));
  world.fail(own, Error(ErrorKind::aborted, "rank 1 aborted the group", {.rank = 1, .peer = 1}));
  CHECK(memory.last_failure()->is_own);

  FlightTicket again = world.start(record_of("barrier", 5));
  world.finish(again);  // it went on
  CHECK_FALSE(memory.last_failure());
}

}  // namespace flight_recorder_test
