// `lockstep stop`: asks all ranks of a job to save and end, on all of its hosts, and waits until it has ended.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::tools {

struct StopOptions {
  std::string job;  // its id or the beginning of that, or its run id
  std::string rdzv_endpoint;
  std::string rdzv_id;
  double timeout_seconds = 60;
};
CLI::App* add_stop(CLI::App& app, StopOptions& options);
// 0: it has ended; 1: not in time; 2: there is no such job, or several.
int stop_command(const StopOptions& options);

}  // namespace lockstep::tools
