// A job whose ranks all run on this machine: its attempts, one after another, until one ends well, the restarts are
// used up, or somebody asks it to stop.
#pragma once

#include <string>

#include "lockstep/launch/rank_cgroups.h"
#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// Returns the exit code of the launcher. `path`: the program's file. `cgroup`: null without limits. Errors as LocalJob,
// JobStore and run_process_tree().
int run_local(const RunOptions& options, const std::string& path, const JobCgroup* cgroup);

}  // namespace lockstep::tools
