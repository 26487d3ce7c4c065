// FlightRecordings is the launcher's side of flight recording: memory for each rank, which the rank inherits and which
// outlives it, and the files that are made of it when the job has gone wrong. See observe/process_recorder.h.
// Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/outcome.h"
#include "lockstep/observe/flight_memory.h"

namespace lockstep {

class FlightRecordings {
 public:
  // Without memory for it, nothing is recorded: that is a warning, not an error.
  FlightRecordings(const std::string& job_id, int ranks);

  // The rank's memory, for it to inherit and to find by kFlightFdVariable; -1 if there is none.
  int fd(int rank) const;

  // What it says of why the rank failed; nothing if it says nothing.
  std::optional<FlightFailure> failure(int rank) const;

  // What became of the job's recordings, for the user: "to see where each rank was: lockstep trace --flight DIR", or
  // why there is none. Empty if nothing went wrong, or nothing was recorded. Writes to a folder for this job among the
  // user's state files, where old ones are removed (see recordings_folder.h); or, whatever happened, to `directory` if
  // that is not empty.
  std::string save(const Outcome& outcome, const std::string& directory = {}) const;

 private:
  const std::string job_id_;
  std::vector<FlightMemory> memories_;  // by rank
};

}  // namespace lockstep
