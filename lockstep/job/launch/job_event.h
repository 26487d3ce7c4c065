// What happens to a job, for a program of the user's (event_hook.h). Values in, JSON out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct HostOfEvent {
  std::string name;
  int first_rank = 0;
  int ranks = 1;
};

struct JobEvent {
  enum class Kind { start, restart, loss, stop, end };
  Kind kind = Kind::start;
  std::string job_id = {};
  std::string run_id = {};
  int attempt = 0;
  int world_size = 0;
  std::vector<HostOfEvent> hosts = {};  // of the attempt
  // Of a restart, a loss and an end: why. Nothing if all went well.
  std::optional<Outcome> outcome = {};
  int stop_signal = 0;
  int exit_code = 0;  // of an end
};

const char* name_of(JobEvent::Kind kind);

// One object in one line, with a newline: "event", "time", "job", "run_id", "attempt", "world_size", "hosts" (each with
// "host" and "ranks"), "cause" ("rank", "host", "failure", "error", "last_operation", where known), "stopped_by", and
// at the end "exit_code".
std::string json_of(const JobEvent& event);

}  // namespace lockstep::internal
