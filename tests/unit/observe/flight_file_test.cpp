#include "lockstep/base/observe/flight_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/observe/process_recorder.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace flight_file_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

FlightRecord barrier(std::uint64_t sequence) {
  FlightRecord record;
  record.set_operation("barrier");
  record.sequence = sequence;
  return record;
}

// A recording of three barriers, of which the last has not ended.
void record_barriers(const std::string& path, int rank = 1, const std::string& job = "job") {
  FlightRecorder recorder(FlightMemory::make_file(path, {.rank = rank, .world_size = 2, .job_id = job}));
  const FlightLog log(recorder, "world", rank, 2);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    FlightTicket ticket = log.start(barrier(i));
    if (i < 3) log.finish(ticket);
  }
}

void overwrite(const std::string& path, std::size_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
}

std::size_t slot_offset(std::size_t slot) { return flight::kSlotsOffset + slot * sizeof(flight::Slot); }

Error refusal(const std::string& path) {
  return error_of([&] { read_flight_file(path); });
}

}  // namespace

TEST_CASE("a file tells what was recorded, while it is recorded and afterwards") {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  record_barriers(path);
  const FlightSnapshot snapshot = read_flight_file(path);
  CHECK(snapshot.rank == 1);
  CHECK(snapshot.world_size == 2);
  CHECK(snapshot.pid == ::getpid());
  CHECK(snapshot.job == "job");
  CHECK_FALSE(snapshot.host.empty());
  CHECK(snapshot.operations == 3);
  CHECK(snapshot.torn == 0);
  REQUIRE(snapshot.groups.size() == 1);
  CHECK(std::string(snapshot.groups[0].name) == "world");
  REQUIRE(snapshot.records.size() == 3);
  CHECK(snapshot.records[1].state == FlightState::done);
  CHECK(describe(snapshot.records[2]) == "barrier #3");
  CHECK(snapshot.records[2].state == FlightState::running);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("names are read wherever the recorder has found a place for them") {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  FlightRecorder recorder(FlightMemory::make_file(path, {.rank = 1, .world_size = 2, .job_id = "job"}));
  constexpr std::uint64_t kLastSlot = flight::kNames - 1;
  for (std::uint64_t i = 0; i < FlightName::kPlaces; ++i) {  // all of one hash's slot, at the end of the table
    recorder.add_name(kLastSlot + i * flight::kNames, "name " + std::to_string(i));
  }
  const FlightSnapshot snapshot = read_flight_file(path);
  for (std::uint64_t i = 0; i < FlightName::kPlaces; ++i) {
    CHECK(snapshot.names.text_of(kLastSlot + i * flight::kNames) == "name " + std::to_string(i));
  }
  overwrite(path, flight::kNamesOffset + 5 * sizeof(flight::Slot) + sizeof(std::uint64_t), std::string(8, '\x20'));
  CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "name in slot 5");
}

TEST_CASE("a launcher's copy says how the process ended") {
  const TemporaryDirectory directory;
  const std::string path = directory / "copy.flight";
  const FlightMemory memory = FlightMemory::make_shared({.rank = 0, .world_size = 1, .job_id = "job"});
  memory.save(path, "was killed by SIGKILL");
  const FlightSnapshot snapshot = read_flight_file(path);
  CHECK(snapshot.ended == "was killed by SIGKILL");
  CHECK(snapshot.pid == 0);
  CHECK(snapshot.records.empty());
  CHECK_ERROR(error_of([&] { memory.save(directory / "no/such/place", ""); }), ErrorKind::invalid_argument,
              "no/such/place");
}

TEST_CASE("damaged files are refused by name") {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  SUBCASE("not there") { CHECK_ERROR(refusal(path), ErrorKind::invalid_argument, path, "cannot open"); }
  SUBCASE("a directory") {
    std::filesystem::create_directory(path);
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "not a regular file");
  }
  SUBCASE("short") {
    std::ofstream(path) << "abc";
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "3 bytes");
  }
  SUBCASE("another kind of file") {
    std::ofstream(path) << std::string(5000, 'x');
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "does not begin with the magic number");
  }
  SUBCASE("cut") {
    record_barriers(path);
    std::filesystem::resize_file(path, flight::kBytes - 1);
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, std::to_string(flight::kBytes));
  }
  SUBCASE("another version") {
    record_barriers(path);
    overwrite(path, offsetof(flight::FlightHeader, version), std::string("\x07\0\0\0", 4));
    const std::string here = fmt::format("reads version {}", flight::kVersion);
    CHECK_ERROR(refusal(path), ErrorKind::invalid_argument, path, "version 7", here);
  }
  SUBCASE("a text without an end") {
    record_barriers(path);
    overwrite(path, offsetof(flight::FlightHeader, job), std::string(64, 'x'));
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "text in its header");
  }
  SUBCASE("an operation that makes no sense") {
    record_barriers(path);
    const std::size_t state = sizeof(std::uint64_t) + offsetof(FlightRecord, state);
    overwrite(path, slot_offset(2) + state, "\x09");
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "operation in slot 2");
  }
  SUBCASE("a time that no clock shows") {
    record_barriers(path);
    overwrite(path, slot_offset(2) + sizeof(std::uint64_t) + offsetof(FlightRecord, issued_ns), std::string(8, '\x7f'));
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "operation in slot 2");
    overwrite(path, offsetof(flight::FlightHeader, wall_ns), std::string(8, '\xff'));
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "the time is -1");
  }
  SUBCASE("a rank that there is not") {
    record_barriers(path);
    overwrite(path, offsetof(flight::FlightHeader, rank), std::string(4, '\x7f'));
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "the rank is 2139062143");
  }
  SUBCASE("an operation in another's slot") {
    record_barriers(path);
    overwrite(path, slot_offset(2) + sizeof(std::uint64_t), "\x05");
    CHECK_ERROR(refusal(path), ErrorKind::corrupt_data, path, "operation in slot 2");
  }
}

TEST_CASE("a record that was being written when its process died is counted, not shown") {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  record_barriers(path);
  overwrite(path, slot_offset(3), "\x1b");  // 8 * 3 + 2 * 1, and the mark of a writer
  const FlightSnapshot snapshot = read_flight_file(path);
  CHECK(snapshot.torn == 1);
  CHECK(snapshot.records.size() == 2);
}

TEST_CASE("a directory holds the recordings of one job") {
  const TemporaryDirectory directory;
  CHECK_ERROR(error_of([&] { read_flight_directory(directory.path()); }), ErrorKind::invalid_argument, directory.path(),
              "no flight recordings");
  CHECK_ERROR(error_of([&] { read_flight_directory(directory / "nowhere"); }), ErrorKind::invalid_argument,
              directory / "nowhere", "cannot read");
  record_barriers(directory / flight_file_name(1), 1);
  record_barriers(directory / flight_file_name(0), 0);
  const auto both = read_flight_directory(directory.path());
  REQUIRE(both.size() == 2);
  CHECK(both[0].rank == 0);
  CHECK(both[1].rank == 1);
  record_barriers(directory / "other.flight", 1, "other");  // no name that a rank gives
  CHECK(read_flight_directory(directory.path()).size() == 2);
  std::ofstream(directory / flight_file_name(2)) << "no recording";
  {
    const testing::CapturedLog log;
    CHECK(read_flight_directory(directory.path()).size() == 2);
    log.await(flight_file_name(2) +
              " is not a flight recording, or is damaged: it is too short: 12 bytes; it is skipped");
  }
  record_barriers(directory / flight_file_name(2), 1, "other");
  CHECK_ERROR(error_of([&] { read_flight_directory(directory.path()); }), ErrorKind::invalid_argument, "different jobs",
              "other");
}

TEST_CASE("what changes while a file is read counts as torn, and a file that is cut meanwhile is refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  record_barriers(path);
  std::ifstream stream(path, std::ios::binary);
  const Bytes whole{std::istreambuf_iterator<char>(stream), {}};
  Bytes later = whole;
  later[slot_offset(2)] = static_cast<char>(later[slot_offset(2)] + 2);  // a later step of the operation
  const FlightSnapshot snapshot = decode_flight({whole, whole, later}, path);
  CHECK(snapshot.torn == 1);
  CHECK(snapshot.records.size() == 2);
  const ByteView cut = ByteView(whole).substr(0, flight::kSlotsOffset);
  CHECK_ERROR(error_of([&] { decode_flight({whole, whole, cut}, path); }), ErrorKind::corrupt_data, path, "bytes");
}

}  // namespace flight_file_test
