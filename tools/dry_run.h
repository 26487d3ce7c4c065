// `lockstep run --dry-run`: prints what would be started, and starts nothing.
#pragma once

#include <string>

#include "tools/run_options.h"

namespace lockstep::tools {

// Lines for standard output. `path`: the program's file; empty if other hosts look for it.
std::string describe_run(const RunOptions& options, const std::string& path);

}  // namespace lockstep::tools
