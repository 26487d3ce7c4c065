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
#include "tools/seconds_range.h"

namespace lockstep::tools {
namespace {

constexpr double kMostSeconds = 30.0 * 24 * 3600;

void apply_config(const std::vector<std::pair<std::string, std::string>>& config, AgentOptions& agent) {
  for (const auto& [key, value] : config) {
    const auto read = [&, name = "--rdzv-conf " + key] { return parse_seconds(name, value, 0, kMostSeconds); };
    if (key == "join_timeout" || key == "timeout") agent.machine.join_timeout = read();
    if (key == "last_call_timeout") agent.machine.last_call = read();
    if (key == "loss_interval") agent.machine.loss_interval = read();
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

// All ranks get these besides the variables for their places: torchrun's settings, and last those that the user gives.
Variables environment_of(const RunOptions& options) {
  const EnvironmentReader reader;
  const std::vector<int>& given = options.signals_to_handle;
  std::vector<std::string> signals;
  for (const int signal : given.empty() ? SignalRelay::stop_signals() : given) signals.push_back(signal_name(signal));
  Variables environment{{"TORCHELASTIC_SIGNALS_TO_HANDLE", fmt::format("{}", fmt::join(signals, ","))}};
  if (!reader.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) environment.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // Into a pipe Python writes whole blocks; what a rank printed last would come late, or never if it is killed.
  if (!reader.has("PYTHONUNBUFFERED")) environment.emplace_back("PYTHONUNBUFFERED", "1");
  environment.insert(environment.end(), options.agent.job.environment.begin(), options.agent.job.environment.end());
  return environment;
}

void be_alone(const RunOptions& options, AgentOptions& agent) {
  agent.is_alone = true;
  agent.machine.least = agent.machine.most = 1;
  agent.rdzv_id = options.rdzv_id;
  agent.token = Token::generate();
  if (!options.bind.empty()) agent.opening.push_back(describe(agent.job.placements, 0));
  if (options.limits.any()) {
    agent.opening.push_back(fmt::format("each rank has at most {}", describe(options.limits)));
  }
}

void be_one_of_several(const RunOptions& options, AgentOptions& agent) {
  if (!options.rdzv_id.empty()) agent.rdzv_id = options.rdzv_id;
  agent.endpoint = parse_meeting_point(options.rdzv_endpoint, agent.machine.most);
  agent.token = Token::for_this_process();
  Variables place{{"LOCKSTEP_RDZV_ENDPOINT", to_string(agent.endpoint)}};
  if (!agent.local_addr.empty()) place.emplace_back("LOCKSTEP_ADDRESS", agent.local_addr);
  agent.job.environment.insert(agent.job.environment.begin(), place.begin(), place.end());
  apply_config(options.rdzv_config, agent);
  if (!options.bind.empty()) log_info(describe(agent.job.placements, 0) + " (ranks of this host)");
}

AgentOptions agent_options(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  AgentOptions agent = options.agent;
  agent.version = LOCKSTEP_VERSION;
  agent.path = path;
  agent.job.placements = place_ranks(parse_binding(options.bind), agent.job.ranks);
  agent.job.cgroup = cgroup;
  agent.job.environment = environment_of(options);
  agent.hang = hang_options(options.hang_timeout);
  agent.make_watch = make_host_watch;
  agent.describe_ranks = ranks_as_json;
  options.rdzv_endpoint.empty() ? be_alone(options, agent) : be_one_of_several(options, agent);
  return agent;
}

void write_report(const RunOptions& options, const AgentResult& result) {
  JobReport report(result.job_id, result.run_id, options.agent.argv);
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
  const JobMetrics metrics(options.metrics, LOCKSTEP_VERSION, options.agent.program,
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
