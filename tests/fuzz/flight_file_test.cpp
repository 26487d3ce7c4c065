#include "lockstep/base/observe/flight_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "lockstep/base/observe/chrome_trace.h"
#include "lockstep/base/observe/flight_layout.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/base/observe/flight_report.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temporary_directory.h"

namespace flight_file_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// A recording of a few operations.
Bytes recording() {
  const TemporaryDirectory directory;
  const std::string path = directory / "rank_1.flight";
  {
    FlightRecorder recorder(FlightMemory::make_file(path, {.rank = 1, .world_size = 2, .job_id = "job"}));
    const FlightLog log(recorder, "world", 1, 2);
    recorder.add_name(2, "end of epoch");
    recorder.add_name(3, "gradients bucket 0 (fc.weight) of backward");
    for (std::uint64_t i = 1; i <= 5; ++i) {
      FlightRecord record;
      record.set_operation("all_reduce");
      record.set_reduction("sum");
      record.sequence = record.count = record.name = i;
      FlightTicket ticket = log.start(record);
      if (i < 4) log.finish(ticket);
      if (i == 4) log.fail(ticket, Error(ErrorKind::timeout, "late", {.peer = 0}));
      FlightPhase phase;
      phase.step = i;
      phase.model = 1;
      phase.begin_ns = record.started_ns;
      phase.end_ns = phase.begin_ns + 1000;
      phase.waiting_ns = 400;
      recorder.add_phase(phase);
    }
  }
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

// The parts of a recording that say something: a mutation of one of many zeros would not tell much. An input is these
// parts, put where they belong.
TEST_CASE("flight files") {
  const Bytes whole = recording();
  const std::size_t header = sizeof(flight::FlightHeader), slots = 8 * sizeof(flight::Slot);
  const Bytes parts = whole.substr(0, header) + whole.substr(flight::kGroupsOffset, slots) +
                      whole.substr(flight::kSlotsOffset, slots) + whole.substr(flight::kNamesOffset, slots) +
                      whole.substr(flight::kPhasesOffset, slots);
  Bytes file = whole;
  fuzz::run({.name = "flight files",
             .seeds = {parts},
             .repair = [&](Bytes& bytes, fuzz::Random&) { bytes.resize(parts.size()); },
             .kinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument},
             .parse =
                 [&](ByteView bytes) {
                   const std::size_t length = std::min(bytes.size(), parts.size());
                   Bytes padded(parts.size(), '\0');
                   std::memcpy(padded.data(), bytes.data(), length);
                   file.replace(0, header, padded, 0, header);
                   file.replace(flight::kGroupsOffset, slots, padded, header, slots);
                   file.replace(flight::kSlotsOffset, slots, padded, header + slots, slots);
                   file.replace(flight::kNamesOffset, slots, padded, header + 2 * slots, slots);
                   file.replace(flight::kPhasesOffset, slots, padded, header + 3 * slots, slots);
                   const ByteView seen = ByteView(file).substr(0, bytes.size() < header ? bytes.size() : file.size());
                   // Every third one changed while it was read.
                   const ByteView before = !bytes.empty() && bytes.back() % 3 == 0 ? ByteView(whole) : seen;
                   const std::vector<FlightSnapshot> snapshots{decode_flight({before, seen, seen}, "/a/rank_1.flight")};
                   report_lines(snapshots, 20);
                   chrome_trace(snapshots, 2);
                 }});
}

}  // namespace flight_file_test
