#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "lockstep/base/hash.h"
#include "lockstep/base/observe/backward_name.h"
#include "lockstep/base/observe/flight_file.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/observe/flight_report.h"
#include "lockstep/base/observe/process_recorder.h"
#include "tests/support/temporary_directory.h"

namespace flight_names_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("what a hash stands for is kept, with a number that is added to it") {
  FlightRecorder recorder(FlightMemory::make_private({}));
  const std::string bucket = "gradient bucket 0 (fc.weight, fc.bias) of backward";
  recorder.add_name(hash_of(bucket), bucket);
  recorder.add_name(hash_of("DDP buffers"), "DDP buffers");
  const FlightNames names = recorder.names();
  CHECK(names.text_of(hash_of("DDP buffers")) == "DDP buffers");
  CHECK(names.text_of(hash_of(bucket) + 17) == bucket + " 17");
  CHECK(names.text_of(0x57abdf012b6c2958) == "name 57abdf012b6c2958");
  CHECK(std::string(recorder.find_name(hash_of(bucket)).text) == bucket);
  CHECK(recorder.find_name(hash_of("another")).hash == 0);
}

TEST_CASE("the number of a backward is in the name of its first bucket") {
  CHECK(backward_of_first_bucket("gradient bucket 0 (fc.weight) of backward 17") == 17);
  CHECK(backward_of_first_bucket("gradient bucket 0 (a of backward 3), Q, wrapper 2, of backward 18") == 18);
  for (const char* other :
       {"", "gradient bucket 0 ", "gradient bucket 1 (a) of backward 17", "DDP report of backward 17",
        "gradient bucket 0 (a) of backward", "gradient bucket 0 (a) of backward ",
        "gradient bucket 0 (a) of backward x", "gradient bucket 0 (a) of backward 1x",
        "gradient bucket 0 (a) of backward -1", "gradient bucket 05 (a) of backward 1"}) {
    CHECK_FALSE(backward_of_first_bucket(other));
  }
}

TEST_CASE("names are cut to what a recording holds, and what cannot be printed is replaced") {
  FlightRecorder recorder(FlightMemory::make_private({}));
  recorder.add_name(hash_of("long"), std::string(1000, 'x'));
  recorder.add_name(hash_of("odd"), "tab\tand \xff");
  CHECK(recorder.names().text_of(hash_of("long")) == std::string(111, 'x'));
  CHECK(recorder.names().text_of(hash_of("odd")) == "tab?and ?");
}

TEST_CASE("of more names on one place than it holds the newest stays, and what it replaces is shown as a number") {
  FlightRecorder recorder(FlightMemory::make_private({}));
  constexpr std::uint64_t kNamePlaces = 8;
  const auto hash = [](std::uint64_t i) { return 5 + (i << 33) * flight::kNames; };  // far apart, on one place
  const auto text = [](std::uint64_t i) { return "name of " + std::to_string(i); };
  for (const int time : {1, 2}) {
    CAPTURE(time);
    for (std::uint64_t i = 0; i < kNamePlaces; ++i) recorder.add_name(hash(i), text(i));
  }
  for (std::uint64_t i = 0; i < kNamePlaces; ++i) {
    CHECK(std::string(recorder.find_name(hash(i)).text) == text(i));
    CHECK(recorder.names().text_of(hash(i) + 3) == text(i) + " 3");
  }
  recorder.add_name(hash(8), text(8));
  CHECK(recorder.find_name(hash(0)).hash == 0);
  CHECK(recorder.names().text_of(hash(0)) == "name 0000000000000005");
  for (std::uint64_t i = 1; i <= 8; ++i) CHECK(recorder.names().text_of(hash(i)) == text(i));
}

TEST_CASE("the names of many buckets are all kept") {
  FlightRecorder recorder(FlightMemory::make_private({}));
  const auto name = [](int i) { return "gradient bucket " + std::to_string(i) + " (fc.weight) of backward"; };
  for (int i = 0; i < 256; ++i) recorder.add_name(hash_of(name(i)), name(i));
  const FlightNames names = recorder.names();
  for (int i = 0; i < 256; ++i) CHECK(names.text_of(hash_of(name(i)) + 17) == name(i) + " 17");
}

TEST_CASE("a process notes the names of its calls; no name is 0") {
  CHECK(note_name("") == 0);
  const std::uint64_t name = note_name("end of epoch");
  CHECK(name == hash_of("end of epoch"));
  CHECK(noted_name(name + 3) == "end of epoch 3");
}

TEST_CASE("recordings are told with the names that any of their ranks noted") {
  const TemporaryDirectory directory;
  for (int rank = 0; rank < 2; ++rank) {
    FlightRecorder recorder(
        FlightMemory::make_file(directory / flight_file_name(rank), {.rank = rank, .world_size = 2, .job_id = "j"}));
    if (rank == 0)
      recorder.add_name(hash_of("gradient bucket 0 (fc.weight) of backward"),
                        "gradient bucket 0 (fc.weight) of backward");
    FlightLog log(recorder, "world", rank, 2);
    FlightRecord record;
    record.sequence = 1;
    record.name = hash_of("gradient bucket 0 (fc.weight) of backward") + (rank == 0 ? 17U : 18U);
    record.set_operation("all_reduce");
    log.start(record);
  }
  const auto snapshots = read_flight_directory(directory / ".");
  std::string text;
  for (const std::string& line : report_lines(snapshots, 5)) text += line + "\n";
  CAPTURE(text);
  CHECK(text.find("rank 0: all_reduce #1, gradient bucket 0 (fc.weight) of backward 17") != std::string::npos);
  CHECK(text.find("rank 1: all_reduce #1, gradient bucket 0 (fc.weight) of backward 18") != std::string::npos);
}

}  // namespace flight_names_test
