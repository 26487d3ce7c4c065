// `lockstep run`: starts the ranks of a job on this machine and stays until they have ended.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/rank_output.h"

namespace lockstep::tools {

using namespace internal;

inline constexpr int kUsageExitCode = 2;
inline constexpr int kStoreExitCode = 3;

struct RunOptions {
  int ranks = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  std::chrono::milliseconds shutdown_timeout{5000};
  std::vector<std::pair<std::string, std::string>> environment;
  RankOutputOptions output;
  std::string flight;                // where flight recordings go, however the job ends; empty: only if it fails
  std::vector<std::string> program;  // and its arguments; not empty
};

// The exit code of the launcher: that of the rank that failed first (128 + n for a signal), 128 + n if the launcher was
// told to stop, 127 or 126 if the program cannot be executed, kStoreExitCode if the store cannot be hosted, 0
// otherwise.
int run_command(const RunOptions& options);

}  // namespace lockstep::tools
