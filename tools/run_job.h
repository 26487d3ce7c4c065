// The job of `lockstep run`: of this host alone, or of several, of which this process is then the agent of one.
#pragma once

#include <string>

#include "lockstep/job/launch/rank_cgroups.h"
#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// Returns the exit code of the launcher. `path`: the program's file. `cgroup`: null without limits. Errors as
// run_agent(); invalid_argument for values of --rdzv-conf.
int run_job(const RunOptions& options, const std::string& path, const JobCgroup* cgroup);

}  // namespace lockstep::tools
