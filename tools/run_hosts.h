// `lockstep run` on several hosts: this process is the agent of one of them.
#pragma once

#include <string>

#include "lockstep/launch/rank_cgroups.h"
#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// Returns the exit code of the launcher. `path`: the program's file. `cgroup`: null without limits. Errors
// as run_agent(); invalid_argument for values
// of --rdzv-conf.
int run_hosts(const RunOptions& options, const std::string& path, const JobCgroup* cgroup);

}  // namespace lockstep::tools
