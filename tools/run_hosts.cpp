#include "tools/run_hosts.h"

#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/elastic/host_job.h"
#include "lockstep/elastic/meeting_point.h"
#include "lockstep/elastic/outside.h"
#include "lockstep/inspect/job_table.h"
#include "lockstep/launch/event_hook.h"
#include "lockstep/launch/hang_watch.h"
#include "lockstep/launch/host_watch.h"
#include "lockstep/launch/job_report.h"
#include "lockstep/launch/launcher_line.h"
#include "lockstep/launch/placement.h"
#include "lockstep/net/token.h"
#include "tools/run_program.h"

namespace lockstep::tools {
namespace {

constexpr std::int64_t kMostSeconds = 30LL * 24 * 3600;

void apply_config(const std::vector<std::pair<std::string, std::string>>& config, AgentOptions& agent) {
  for (const auto& [key, value] : config) {
    const auto read = [&, name = "--rdzv-conf " + key] {
      return std::chrono::seconds(parse_integer(name, value, 0, kMostSeconds));
    };
    if (key == "join_timeout" || key == "timeout") agent.join_timeout = read();
    if (key == "last_call_timeout") agent.last_call = read();
    if (key == "loss_interval") agent.loss_interval = read();
  }
}

AgentOptions agent_options(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  AgentOptions agent;
  agent.version = LOCKSTEP_VERSION;
  if (!options.rdzv_id.empty()) agent.rdzv_id = options.rdzv_id;
  agent.least = options.nodes.least;
  agent.most = options.nodes.most;
  agent.max_restarts = options.max_restarts;
  agent.program = options.program_name;
  agent.arguments = options.program_arguments;
  agent.endpoint = parse_meeting_point(options.rdzv_endpoint, options.nodes.most);
  agent.node_rank = options.node_rank;
  agent.token = Token::for_this_process();
  apply_config(options.rdzv_config, agent);
  agent.local_addr = options.local_addr;
  agent.master_addr = options.master_addr;
  agent.master_port = options.master_port;
  agent.ranks = options.ranks;
  agent.path = path;
  agent.argv = options.program;
  agent.role = options.role;
  agent.virtual_local_rank = options.virtual_local_rank;
  agent.placements = place_ranks(parse_binding(options.bind), options.ranks);
  if (!options.bind.empty()) log_info(describe(agent.placements, 0) + " (ranks of this host)");
  agent.cgroup = cgroup;
  agent.environment = environment_of(options);
  agent.output = options.output;
  agent.flight = options.flight;
  agent.grace = options.shutdown_timeout;
  agent.stop_grace = options.stop_grace;
  agent.stop_exit_code = options.stop_exit_code;
  agent.signals = options.signals_to_handle;
  agent.hang = hang_options(options.hang_timeout);
  agent.make_watch = make_host_watch;
  agent.describe_ranks = ranks_as_json;
  return agent;
}

}  // namespace

int run_hosts(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  EventHook hook(options.on_event);
  AgentOptions agent = agent_options(options, path, cgroup);
  const JobMetrics metrics(options.metrics, LOCKSTEP_VERSION, options.program_name, log_info);
  agent.monitor = metrics.monitor();
  agent.on_event = [&hook, &agent](const JobEvent& event) {
    if (hook.is_wanted()) hook.post(event);
    if (agent.monitor != nullptr) agent.monitor->on_event(event);
  };
  const AgentResult result = run_agent(agent);
  if (!options.report.empty() && result.is_first) {
    JobReport report(result.job_id, options.rdzv_id.empty() ? "default" : options.rdzv_id, options.program);
    for (const Outcome& attempt : result.attempts) report.add(attempt);
    try {
      report.write(options.report, result.exit_code);
    } catch (const Error& error) {
      say_on_standard_error(error.what(), LogLevel::warning);
    }
  }
  hook.finish(result.was_asked);
  return result.exit_code;
}

}  // namespace lockstep::tools
