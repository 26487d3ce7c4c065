// Completes the command line by the settings of a cluster manager: see launch_place.h.
#pragma once

#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// With hosts, endpoint, host number and job id, if a manager has started one agent on each of several hosts. Logs from
// where. Errors as find_launch_place().
RunOptions in_cluster(const RunOptions& options);

}  // namespace lockstep::tools
