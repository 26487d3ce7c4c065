// HostJob is an agent's life: meeting -> (start -> ranks of this host -> done)* -> farewell. It starts the ranks of its
// host when the first host says so, ends them when that says so or is lost, and tells it how they ended.
#pragma once

#include <string>
#include <vector>

#include "lockstep/elastic/agent_options.h"
#include "lockstep/launch/outcome.h"

namespace lockstep::internal {

struct AgentResult {
  int exit_code = 0;
  bool is_first = false;   // this was the first host
  bool was_asked = false;  // somebody has asked the job to stop, or this host to leave it
  std::string job_id = {};
  std::vector<Outcome> attempts = {};  // of the whole job on the first host
};

// Blocks until the job is over. The exit code is the same on all hosts that the job ends with; kLostExitCode on those
// that have lost the first host. Errors as meet(), LocalJob.
AgentResult run_agent(const AgentOptions& options);

inline constexpr int kLostExitCode = 3;

}  // namespace lockstep::internal
