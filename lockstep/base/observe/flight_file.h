// Reads flight recordings: those that a launcher saved, and those of processes that still record. file -> snapshot ->
// report. Blocks on the disk only. Sizes are fixed, and every field is checked. Errors name the file: invalid_argument
// (missing, or of another version), corrupt_data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/observe/flight_phase.h"
#include "lockstep/base/observe/flight_record.h"

namespace lockstep::internal {

// What one rank recorded.
struct FlightSnapshot {
  std::string path;
  int rank = -1;
  int world_size = 0;
  int pid = 0;  // 0: it has recorded nothing
  std::string host;
  std::string job;
  std::string ended;              // how its process ended; empty: not known
  std::int64_t wall_ns = 0;       // the wall clock's time when ...
  std::int64_t monotonic_ns = 0;  // ... the monotonic clock showed this
  std::uint64_t operations = 0;   // begun; the last thousand are in `records`
  std::size_t torn = 0;           // slots that were being written when the process ended
  std::vector<FlightGroup> groups;
  std::vector<FlightRecord> records;  // by number
  std::vector<FlightPhase> phases;    // of training steps, the last thousand, by number
  FlightNames names;
};

FlightSnapshot read_flight_file(const std::string& path);
// Three copies of a file, taken one after the other: slots that changed in between count as torn. Pure; `path` is for
// errors.
struct FlightCopies {
  ByteView before;
  ByteView words;
  ByteView after;
};
FlightSnapshot decode_flight(const FlightCopies& copies, const std::string& path);
// All recordings of a directory, by rank. A recording that cannot be read is skipped with a warning, unless no other is
// left. Error{invalid_argument} if the directory has no recordings, or those of several jobs.
std::vector<FlightSnapshot> read_flight_directory(const std::string& directory);

}  // namespace lockstep::internal
