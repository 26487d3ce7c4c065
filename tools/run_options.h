// What the command line of `lockstep run` says, checked; see run_command.h for what is done with it. Values.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_limits.h"
#include "lockstep/job/launch/rank_output.h"
#include "tools/metrics/job_metrics.h"

namespace lockstep::tools {

using namespace internal;

// "2" or "1:4"
struct NodeRange {
  int least = 1;
  int most = 1;
};

struct RunOptions {
  int ranks = 1;            // on this host
  std::string master_addr;  // for other libraries; empty: the host of rank 0
  int master_port = 0;
  std::chrono::milliseconds shutdown_timeout{5000};
  std::vector<std::pair<std::string, std::string>> environment;
  RankOutputOptions output;
  std::string flight;                // where flight recordings go, however the job ends; empty: only if it fails
  std::vector<std::string> program;  // and its arguments; not empty
  std::vector<std::string> program_arguments;  // as the user has them
  std::string program_name;  // as the user has it, without the folder: of a script, not of its interpreter

  // Restarts and stops.
  int max_restarts = 0;
  std::chrono::milliseconds stop_grace{25000};              // from a request to stop to SIGKILL
  int stop_exit_code = kStoppedExitCode;                    // of a job that is stopped before its end
  std::vector<int> signals_to_handle;                       // empty: SIGTERM, SIGINT, SIGHUP, SIGQUIT
  std::string log_format;                                   // text, json; empty: as LOCKSTEP_LOG_FORMAT says
  std::string on_event;                                     // a program that is told of events; empty: none
  std::string report;                                       // a file for the report as JSON; empty: none
  MetricsOptions metrics;                                   // how the job can be watched
  std::optional<std::chrono::milliseconds> hang_timeout{};  // ends or restarts a job that hangs; none: report

  // Several hosts.
  bool standalone = false;  // this one alone, whatever a cluster manager says
  NodeRange nodes;
  bool chooses_nodes = false;  // overrides a cluster manager's
  std::optional<int> node_rank;
  std::string rdzv_endpoint;                                     // host:port; empty: this host alone
  std::string rdzv_id;                                           // empty: "default"
  std::vector<std::pair<std::string, std::string>> rdzv_config;  // --rdzv-conf key=value, ...
  std::string local_addr;                                        // how others reach this host; empty: found
  std::vector<std::pair<std::string, int>> hosts;                // --hosts a,b:4; ranks of 0: as --nproc-per-node
  std::string remote_path;                                       // of lockstep on them; empty: as here

  std::string role = "default";
  bool virtual_local_rank = false;  // each rank sees one GPU, as its device 0
  std::string bind;                 // core, socket, numa, none; empty: none
  RankLimits limits;                // of each rank of this host
  bool dry_run = false;
};

}  // namespace lockstep::tools
