// FlightRecordings is the launcher's side of flight recording: memory for each rank, which the rank inherits and which
// outlives it, and the files that are written from it when the job has failed. See observe/process_recorder.h. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/observe/flight_memory.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct LastOperation {
  std::string text = {};  // "all_reduce(sum) #41 of 1024 float32, not finished"; empty if there is none
  // How long after the first rank of this host it was begun; nothing: not known, or no collective.
  std::optional<std::int64_t> lateness_ns = {};
};

class FlightRecordings {
 public:
  // Of `ranks` ranks from `first_rank` on. Without memory nothing is recorded, with a warning.
  FlightRecordings(const std::string& job_id, int first_rank, int ranks, int world_size);

  // Below, ranks are those of the job.

  // The descriptor of the rank's memory, for the rank to inherit and to find by kFlightFdVariable; -1 without memory.
  int fd(int rank) const;

  // Null without memory.
  const FlightMemory* memory(int rank) const;

  // What it says about the rank's failure, if anything.
  std::optional<FlightFailure> failure(int rank) const;

  // The last collective or message that the rank has begun.
  LastOperation last_operation(int rank) const;

  // Saves the recordings if the attempt failed, to its folder in that of this job among the user's state files, where
  // old ones are removed; or, after any outcome, to its folder in `directory` if that is not empty: there recordings of
  // other jobs are removed, and those of this job's other ranks stay. See recordings_folder.h. Returns a line for the
  // user: "to see where each rank was: lockstep trace --flight DIR", or why the recordings are lost; empty if nothing
  // was saved.
  std::string save(const Outcome& outcome, const std::string& directory = {}, int attempt = 0) const;

 private:
  std::optional<std::int64_t> lateness_ns(const std::string& group, const FlightRecord& collective) const;

  const std::string job_id_;
  const int first_rank_;
  std::vector<FlightMemory> memories_;  // by rank of this host
};

}  // namespace lockstep::internal
