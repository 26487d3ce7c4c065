#include "tools/run_hosts.h"

#include <cstdio>
#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/elastic/host_job.h"
#include "lockstep/launch/hang_watch.h"
#include "lockstep/launch/host_watch.h"
#include "lockstep/launch/job_report.h"
#include "lockstep/launch/placement.h"
#include "lockstep/net/address.h"
#include "lockstep/net/token.h"
#include "tools/run_program.h"

namespace lockstep::tools {
namespace {

constexpr int kDefaultRdzvPort = 29400;
constexpr std::int64_t kMostSeconds = 30LL * 24 * 3600;

Endpoint endpoint_of(const std::string& text) {
  const bool has_port = text.find(':') != std::string::npos;
  return has_port ? parse_endpoint(text) : Endpoint{text, kDefaultRdzvPort};
}

void apply_config(const std::vector<std::pair<std::string, std::string>>& config, AgentOptions& agent) {
  for (const auto& [key, value] : config) {
    const auto read = [&, name = "--rdzv-conf " + key] {
      return std::chrono::seconds(parse_integer(name, value, 0, kMostSeconds));
    };
    if (key == "join_timeout" || key == "timeout") agent.join_timeout = read();
    if (key == "last_call_timeout") agent.last_call = read();
  }
}

AgentOptions agent_options(const RunOptions& options, const std::string& path) {
  AgentOptions agent;
  agent.version = LOCKSTEP_VERSION;
  if (!options.rdzv_id.empty()) agent.rdzv_id = options.rdzv_id;
  agent.least = options.nodes.least;
  agent.most = options.nodes.most;
  agent.max_restarts = options.max_restarts;
  agent.program = options.program_name;
  agent.endpoint = endpoint_of(options.rdzv_endpoint);
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
  agent.environment = environment_of(options);
  agent.output = options.output;
  agent.flight = options.flight;
  agent.grace = options.shutdown_timeout;
  agent.stop_grace = options.stop_grace;
  agent.signals = options.signals_to_handle;
  agent.hang = hang_options(options.hang_timeout);
  agent.make_watch = make_host_watch;
  return agent;
}

}  // namespace

int run_hosts(const RunOptions& options, const std::string& path) {
  AgentOptions agent = agent_options(options, path);
  const JobMetrics metrics(options.metrics, LOCKSTEP_VERSION, options.program_name, log_info);
  agent.monitor = metrics.monitor();
  if (agent.monitor != nullptr) {
    agent.on_event = [&agent](const JobEvent& event) { agent.monitor->on_event(event); };
  }
  const AgentResult result = run_agent(agent);
  if (!options.report.empty() && result.is_first) {
    JobReport report(result.job_id, options.rdzv_id.empty() ? "default" : options.rdzv_id, options.program);
    for (const Outcome& attempt : result.attempts) report.add(attempt);
    try {
      report.write(options.report, result.exit_code);
    } catch (const Error& error) {
      std::fprintf(stderr, "lockstep: warning: %s\n", error.what());
    }
  }
  return result.exit_code;
}

}  // namespace lockstep::tools
