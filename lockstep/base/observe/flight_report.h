// The report on the flight recordings of a job: where each rank of each group was, and where the ranks differ.
// snapshots -> report -> text. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/observe/flight_file.h"

namespace lockstep::internal {

// Where one rank is in a group.
struct FlightStatus {
  int rank = -1;                     // of the job
  std::optional<FlightRecord> last;  // its last recorded collective that has begun, if any
  std::size_t queued = 0;            // collectives issued and not begun
};

// A collective that all ranks of its group have begun: how much later the last one came than the first.
struct FlightArrival {
  FlightRecord record;  // of the last rank
  int first = -1;       // ranks of the job
  int last = -1;
  std::int64_t spread_ns = 0;
};

struct GroupReport {
  std::string name;
  int size = 0;
  std::vector<FlightStatus> statuses;  // by rank; ranks without a recording are missing
  bool differ = false;                 // the ranks are not all at the same collective in the same state
  // The first collective that ranks began with different arguments: one record for each rank that recorded it.
  std::vector<std::pair<int, FlightRecord>> mismatch;
  std::vector<FlightArrival> arrivals;  // by sequence; on the common clock, see common_clock.h
};

// The names of all snapshots together: the ranks of a job use the same names.
FlightNames names_of(const std::vector<FlightSnapshot>& snapshots);

std::vector<GroupReport> report_of(const std::vector<FlightSnapshot>& snapshots);

// For the user: every group with the arrivals at its last collectives, then the last operations of every rank. Lines
// without newlines.
std::vector<std::string> report_lines(const std::vector<FlightSnapshot>& snapshots, std::size_t last_operations);
// "rank 2 (host n1, pid 811)"
std::string name_of(const FlightSnapshot& snapshot);
// "41.207 ms"; empty if it has not ended, or never began.
std::string duration_of(const FlightRecord& record);

}  // namespace lockstep::internal
