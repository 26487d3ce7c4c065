#include "tools/run_job.h"

#include <memory>
#include <optional>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/elastic/agent.h"
#include "lockstep/job/elastic/meeting_point.h"
#include "lockstep/job/elastic/outside.h"
#include "lockstep/job/inspect/job_table.h"
#include "lockstep/job/launch/end_note.h"
#include "lockstep/job/launch/event_hook.h"
#include "lockstep/job/launch/host_watch.h"
#include "lockstep/job/launch/job_report.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/placement.h"
#include "lockstep/job/launch/signal_relay.h"
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

// The user's: LOCKSTEP_HANG_SECONDS and LOCKSTEP_HANG_CAP_SECONDS, or the defaults.
HangOptions hang_options(std::optional<Duration> end_after) {
  HangOptions options{.end_after = end_after};
  const EnvironmentReader reader;
  if (const auto tell = reader.number("LOCKSTEP_HANG_SECONDS")) options.tell_after = std::chrono::seconds(*tell);
  if (const auto cap = reader.number("LOCKSTEP_HANG_CAP_SECONDS")) options.hard_cap = std::chrono::seconds(*cap);
  return options;
}

void be_alone(const RunOptions& options, AgentOptions& agent) {
  agent.is_alone = true;
  agent.rdzv_id = options.rdzv_id;
  agent.token = Token::generate();
  if (!options.bind.empty()) agent.opening.push_back(describe(agent.placements, 0));
  if (options.limits.any()) {
    agent.opening.push_back(fmt::format("each rank has at most {}", describe(options.limits)));
  }
}

void be_one_of_several(const RunOptions& options, AgentOptions& agent) {
  if (!options.rdzv_id.empty()) agent.rdzv_id = options.rdzv_id;
  agent.least = options.nodes.least;
  agent.most = options.nodes.most;
  agent.endpoint = parse_meeting_point(options.rdzv_endpoint, options.nodes.most);
  agent.node_rank = options.node_rank;
  agent.token = Token::for_this_process();
  agent.local_addr = options.local_addr;
  apply_config(options.rdzv_config, agent);
  if (!options.bind.empty()) log_info(describe(agent.placements, 0) + " (ranks of this host)");
}

AgentOptions agent_options(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  AgentOptions agent;
  agent.version = LOCKSTEP_VERSION;
  agent.max_restarts = options.max_restarts;
  agent.program = options.program_name;
  agent.arguments = options.program_arguments;
  agent.master_addr = options.master_addr;
  agent.master_port = options.master_port;
  agent.ranks = options.ranks;
  agent.path = path;
  agent.argv = options.program;
  agent.role = options.role;
  agent.virtual_local_rank = options.virtual_local_rank;
  agent.placements = place_ranks(parse_binding(options.bind), options.ranks);
  agent.cgroup = cgroup;
  agent.environment = environment_of(options);
  agent.output = options.output;
  agent.flight = options.flight;
  agent.grace = options.shutdown_timeout;
  agent.stop_grace = options.stop_grace;
  agent.stop_exit_code = options.stop_exit_code;
  agent.hang = hang_options(options.hang_timeout);
  agent.make_watch = make_host_watch;
  agent.describe_ranks = ranks_as_json;
  options.rdzv_endpoint.empty() ? be_alone(options, agent) : be_one_of_several(options, agent);
  return agent;
}

void write_report(const RunOptions& options, const AgentResult& result) {
  JobReport report(result.job_id, result.run_id, options.program);
  for (const Outcome& attempt : result.attempts) report.add(attempt);
  try {
    report.write(options.report, result.exit_code);
  } catch (const Error& error) {
    say_on_standard_error(error.what(), LogLevel::warning);
  }
}

}  // namespace

int run_job(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  EventHook hook(options.on_event);
  AgentOptions agent = agent_options(options, path, cgroup);
  std::optional<EndNote> note;
  if (agent.is_alone) note.emplace();
  const JobMetrics metrics(options.metrics, LOCKSTEP_VERSION, options.program_name,
                           [](const std::string& line) { say_on_standard_error(line); });
  agent.monitor = metrics.monitor();
  agent.on_event = [&hook, &agent](const JobEvent& event) {
    if (hook.is_wanted()) hook.post(event);
    if (agent.monitor != nullptr) agent.monitor->on_event(event);
  };
  agent.on_over = [&](const AgentResult& result) {
    if (note) note->write(result.exit_code, result.text);
    if (!options.report.empty() && result.is_first) write_report(options, result);
  };
  SignalRelay signals(options.signals_to_handle.empty() ? SignalRelay::stop_signals() : options.signals_to_handle);
  const AgentResult result = run_agent(agent, signals);
  hook.finish(result.was_asked, signals.fd());
  return result.exit_code;
}

}  // namespace lockstep::tools
