// FlightRecordings is the launcher's side of flight recording: memory for each rank, which the rank inherits and which
// outlives it, and the files that are written from it when the job has failed. See observe/process_recorder.h. Not
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/outcome.h"
#include "lockstep/observe/flight_memory.h"

namespace lockstep {

class FlightRecordings {
 public:
  // Without memory nothing is recorded, with a warning.
  FlightRecordings(const std::string& job_id, int ranks);

  // The descriptor of the rank's memory, for the rank to inherit and to find by kFlightFdVariable; -1 without memory.
  int fd(int rank) const;

  // What it says about the rank's failure, if anything.
  std::optional<FlightFailure> failure(int rank) const;

  // Saves the recordings if the job failed, to a folder for this job among the user's state files (see
  // recordings_folder.h), where old ones are removed; or, after any outcome, to `directory` if that is not empty.
  // Returns a line for the user: "to see where each rank was: lockstep trace --flight DIR", or why the recordings are
  // lost; empty if nothing was saved.
  std::string save(const Outcome& outcome, const std::string& directory = {}) const;

 private:
  const std::string job_id_;
  std::vector<FlightMemory> memories_;  // by rank
};

}  // namespace lockstep
