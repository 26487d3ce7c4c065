// What an agent of a job is told by its user, and how the job has ended. Values.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/elastic/job_order.h"
#include "lockstep/job/launch/hang_decision.h"
#include "lockstep/job/launch/host_watch.h"
#include "lockstep/job/launch/job_event.h"
#include "lockstep/job/launch/job_monitor.h"
#include "lockstep/job/launch/local_job.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_output.h"

namespace lockstep::internal {

// The id of a job that its user has given none.
inline constexpr const char* kDefaultRdzvId = "default";

// How its job has ended.
struct AgentResult {
  int exit_code = 0;
  bool is_first = false;   // this was the first host
  bool was_asked = false;  // somebody has asked the job to stop, or this host to leave it
  std::string job_id = {};
  std::string run_id = {};
  std::string text = {};               // why the job has ended like this; empty if it has ended well
  std::vector<Outcome> attempts = {};  // of the whole job on the first host
};

struct AgentOptions {
  // The same on all hosts; their agents compare them.
  std::string version;  // of Lockstep
  std::string rdzv_id = kDefaultRdzvId;
  std::string program;                 // its name, without the folder
  std::vector<std::string> arguments;  // the program's own; not compared where the user gives an rdzv id
  JobMachineOptions machine{};         // numbers of hosts, restarts; in part compared

  // The job is on this host alone: no host can join, and nothing listens.
  bool is_alone = false;
  // Where the agents meet otherwise.
  Endpoint endpoint;
  std::optional<int> node_rank{};
  Token token;
  std::string local_addr{};   // how others reach this host; empty: found
  std::string master_addr{};  // for other libraries; empty: the host of rank 0
  int master_port = 0;        // 0: a free one

  // The ranks of this host. Of `job` the agent adds what is the same on all hosts.
  JobOptions job{};
  std::string path;               // the program's file
  std::vector<std::string> argv;  // and its arguments
  RankOutputOptions output{};
  std::string flight{};
  std::chrono::milliseconds grace{5000};        // from SIGTERM to SIGKILL after a failure
  std::chrono::milliseconds stop_grace{25000};  // from a request to stop to SIGKILL
  // On the first host, when a job hangs; nothing: that is not looked for.
  std::optional<HangOptions> hang{};
  std::vector<std::string> opening{};  // of a job on this host alone: lines for the user before it begins
  // The job is over, and a slow reader may not have got all that its ranks have printed. Must not throw.
  std::function<void(const AgentResult& result)> on_over{};
  // On the first host: what happens to the job; null: not reported. Must not block or throw.
  std::function<void(const JobEvent& event)> on_event{};
  // What the ranks with these pids do, as text for HostStatus; null: not known. Blocks for a moment.
  std::function<std::string(const std::string& job_id, const std::vector<int>& pids)> describe_ranks{};
  // Gets what all ranks of the job count, on the first host; null: nobody watches. Borrowed.
  JobMonitor* monitor = nullptr;
  // Makes what looks at the ranks of an attempt; null: nobody does. `tell_after`: of the first host.
  std::function<std::unique_ptr<HostWatch>(Duration tell_after, HostWatchContext context)> make_watch{};
};

}  // namespace lockstep::internal
