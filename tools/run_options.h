// What the command line of `lockstep run` says, checked; see run_command.h for what is done with it. Values.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/launch/rank_limits.h"
#include "tools/metrics/job_metrics.h"

namespace lockstep::tools {

using namespace internal;

struct RunOptions {
  // Of this host's agent, as far as options set it; run_job() adds the rest.
  AgentOptions agent;
  std::vector<std::string> given;  // the options themselves, "--stop-grace=30": for launchers that this one starts

  std::vector<int> signals_to_handle;                       // empty: SIGTERM, SIGINT, SIGHUP, SIGQUIT
  std::string log_format;                                   // text, json; empty: as LOCKSTEP_LOG_FORMAT says
  std::string on_event;                                     // a program that is run for each event; empty: none
  std::string report;                                       // a file for the report as JSON; empty: none
  MetricsOptions metrics;                                   // how the job can be watched
  std::optional<std::chrono::milliseconds> hang_timeout{};  // ends or restarts a job that hangs; none: report

  // Several hosts.
  bool standalone = false;                                       // this one alone, whatever a cluster manager says
  bool chooses_nodes = false;                                    // overrides a cluster manager's number of hosts
  std::string rdzv_endpoint;                                     // host:port; empty: this host alone
  std::string rdzv_id;                                           // empty: none is given
  std::vector<std::pair<std::string, std::string>> rdzv_config;  // --rdzv-conf key=value, ...
  std::vector<std::pair<std::string, int>> hosts;                // --hosts a,b:4; ranks of 0: as --nproc-per-node
  std::string remote_path;                                       // of lockstep on them; empty: as here

  std::string bind;   // core, socket, numa, none; empty: none
  RankLimits limits;  // of each rank of this host
  bool dry_run = false;
};

}  // namespace lockstep::tools
