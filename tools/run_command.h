// `lockstep run`: starts the ranks of a job on this machine and stays until they have ended. Its options are declared
// in run_parser.h, those of every other command in the add_<command>() of its source.
#pragma once

#include "lockstep/job/launch/exit_codes.h"
#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// The exit code of the launcher: that of the job (exit_code_of()); 127 or 126 if the program cannot be executed;
// kRendezvousExitCode if the store cannot be hosted; kUsageExitCode.
int run_command(const RunOptions& options);

}  // namespace lockstep::tools
