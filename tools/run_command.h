// `lockstep run`: starts the ranks of a job on this machine and stays until they have ended.
#pragma once

#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

inline constexpr int kUsageExitCode = 2;
inline constexpr int kStoreExitCode = 3;

// The exit code of the launcher: that of the job (exit_code_of()); 127 or 126 if the program cannot be executed;
// kStoreExitCode if the store cannot be hosted; kUsageExitCode.
int run_command(const RunOptions& options);

}  // namespace lockstep::tools
