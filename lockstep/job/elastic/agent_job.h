// What an agent runs on its host: AgentOptions, and what the coordinator has told -> the options of a LocalJob. Pure
// but for the variables of a job around this one.
#pragma once

#include <string>

#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/launch/local_job.h"

namespace lockstep::internal {

// tag: by which the processes of this host's ranks are found.
JobOptions job_options(const AgentOptions& options, const std::string& job_id, const std::string& tag);

}  // namespace lockstep::internal
