#include "tools/run_over_ssh.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/rendezvous/launchers.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/program_path.h"
#include "lockstep/job/launch/remote_host.h"
#include "lockstep/job/launch/signal_relay.h"
#include "lockstep/job/launch/ssh_hosts.h"
#include "tools/run_arguments.h"

namespace lockstep::tools {
namespace {

constexpr std::string_view kOurs = "LOCKSTEP_";
// Of this host or process alone. The token comes with the order.
constexpr std::array<std::string_view, 16> kOfThisHost{
    "LOCKSTEP_ADDRESS",    "LOCKSTEP_BIND",          "LOCKSTEP_FLIGHT_FD", "LOCKSTEP_GENERATION",
    "LOCKSTEP_JOB_ID",     "LOCKSTEP_JOINED_FD",     "LOCKSTEP_LAUNCHER",  "LOCKSTEP_NODE",
    "LOCKSTEP_OUTER_JOBS", "LOCKSTEP_RDZV_ENDPOINT", "LOCKSTEP_SPAWN",     "LOCKSTEP_SPAWN_REPORT",
    "LOCKSTEP_STORE",      "LOCKSTEP_TERMINAL",      "LOCKSTEP_TOKEN_FD",  "LOCKSTEP_TOKEN_FILE"};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string random_digits() {
  std::string digits;
  const Token random = Token::generate();
  for (const std::uint8_t byte : std::span(random.bytes()).first(8)) digits += fmt::format("{:02x}", byte);
  return digits;
}

// For agents: they give their ranks a time of grace, and have something to do after it.
std::chrono::seconds end_limit(const RunOptions& options) {
  constexpr std::chrono::milliseconds kAfterGrace = std::chrono::seconds(15);
  return std::chrono::ceil<std::chrono::seconds>(std::max(options.agent.stop_grace, options.agent.grace) + kAfterGrace);
}

Variables environment_for_hosts() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kOurs) || name.size() == text.size()) continue;
    if (std::ranges::find(kOfThisHost, name) != kOfThisHost.end()) continue;
    variables.emplace_back(name, text.substr(name.size() + 1));
  }
  if (const auto text = EnvironmentReader().text(kPrefixTemplateVariable)) {
    variables.emplace_back(kPrefixTemplateVariable, *text);
  }
  return variables;
}

// Where the agents meet: a port on the first host, by a name that means the same on all of them.
std::string endpoint_for(const RunOptions& options, const std::string& ssh, const std::string& id) {
  const std::string& first = options.hosts.front().first;
  std::string host = first;
  const bool others = std::ranges::any_of(options.hosts, [](const auto& each) { return !is_this_host(each.first); });
  if (!is_this_host(first)) {
    host = resolved_by_ssh(ssh, first);
  } else if (others && (first == "localhost" || first == "::1" || first.starts_with("127."))) {
    host = host_name();
  }
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  return fmt::format("{}:{}", host, port_of_job(id));
}

// Options that are not passed on: those of this launcher alone, and those that each host gets with another value.
constexpr std::array<std::string_view, 11> kOfThisLauncher{
    "--hosts",   "--remote-path", "--nnodes", "--node-rank", "--nproc-per-node", "--rdzv-endpoint",
    "--rdzv-id", "--config",      "--module", "--run-path",  "--no-python"};
// Those of the first host alone.
constexpr std::array<std::string_view, 4> kOfFirstHost{"--report", "--on-event", "--metrics-port",
                                                       "--metrics-textfile"};

}  // namespace

std::vector<std::pair<std::string, int>> parse_hosts(const std::string& text) {
  std::vector<std::pair<std::string, int>> hosts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string each = text.substr(start, end - start);
    start = end + 1;
    const std::size_t colon = each.starts_with('[') ? each.find("]:") : each.find(':');
    const std::size_t number = each.starts_with('[') && colon != std::string::npos ? colon + 1 : colon;
    std::string name = each.substr(0, number);
    if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
    if (name.empty() || name.starts_with('-')) {
      throw Error(ErrorKind::invalid_argument, fmt::format("--hosts: '{}' in '{}' is not a host name", each, text));
    }
    const bool has_number = number != std::string::npos;
    hosts.emplace_back(
        name, has_number ? parse_integer("--hosts: the number of ranks", each.substr(number + 1), 1, 1024) : 0);
  }
  return hosts;
}

std::vector<std::string> agent_arguments(const RunOptions& options, int host) {
  const int ranks = options.hosts[static_cast<std::size_t>(host)].second;
  std::vector<std::string> list{"run",
                                fmt::format("--nnodes={}", options.hosts.size()),
                                fmt::format("--node-rank={}", host),
                                fmt::format("--nproc-per-node={}", ranks == 0 ? options.agent.job.ranks : ranks),
                                "--rdzv-endpoint=" + options.rdzv_endpoint,
                                "--rdzv-id=" + options.rdzv_id};
  for (const std::string& option : options.given) {
    const std::string_view name = std::string_view(option).substr(0, option.find('='));
    const bool is_for_host = std::ranges::find(kOfThisLauncher, name) == kOfThisLauncher.end() &&
                             (host == 0 || std::ranges::find(kOfFirstHost, name) == kOfFirstHost.end());
    if (is_for_host) list.push_back(option);
  }
  list.emplace_back("--no-python");  // the program is the whole command already
  list.emplace_back("--");
  list.insert(list.end(), options.agent.argv.begin(), options.agent.argv.end());
  return list;
}

int run_over_ssh(const RunOptions& given) {
  RunOptions options = given;
  const bool all_here = std::ranges::all_of(options.hosts, [](const auto& host) { return is_this_host(host.first); });
  const std::string path = EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  SshPlan plan;
  if (!all_here) plan.ssh = find_program("ssh", path);
  plan.program = own_path();
  plan.remote_program = options.remote_path.empty() ? plan.program : options.remote_path;
  const std::chrono::seconds limit = end_limit(options);
  plan.end_limit = limit;
  const Token token = Token::generate();
  const std::string id = "ssh-" + random_digits();
  const std::string secret = random_digits();
  if (options.rdzv_id.empty()) options.rdzv_id = id;
  if (options.rdzv_endpoint.empty()) options.rdzv_endpoint = endpoint_for(options, plan.ssh, id);
  const Bytes token_bytes(token.bytes().begin(), token.bytes().end());
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    const std::string& name = options.hosts[i].first;
    plan.hosts.push_back({.is_here = is_this_host(name),
                          .order = {.version = LOCKSTEP_VERSION,
                                    .host = name,
                                    .directory = std::filesystem::current_path().string(),
                                    .token = token_bytes,
                                    .secret = secret,
                                    .end_limit_s = static_cast<std::uint32_t>(limit.count()),
                                    .environment = environment_for_hosts(),
                                    .arguments = agent_arguments(options, static_cast<int>(i))}});
  }
  return run_ssh_hosts(plan,
                       options.signals_to_handle.empty() ? SignalRelay::stop_signals() : options.signals_to_handle);
}

int remote_host_command() { return run_remote_host(own_path(), LOCKSTEP_VERSION); }

}  // namespace lockstep::tools
