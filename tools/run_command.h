// `lockstep run`: starts the ranks of a job on this machine and stays until they have ended.
#pragma once

#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

inline constexpr int kUsageExitCode = 2;
inline constexpr int kStoreExitCode = 3;
inline constexpr int kHangExitCode = 4;

// The exit code of the launcher: that of the rank that failed first (128 + n for a signal); kHangExitCode if it has
// ended a job that hung; 128 + n if it was told to stop and not all ranks ended well; 127 or 126 if the program cannot
// be executed; kStoreExitCode if the store cannot be hosted; kUsageExitCode; 0 otherwise.
int run_command(const RunOptions& options);

}  // namespace lockstep::tools
