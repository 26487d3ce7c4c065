#include "tools/run_arguments.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/job/launch/fill_in.h"
#include "tools/run_command.h"
#include "tools/run_parser.h"
#include "tools/run_values.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

constexpr int kStaticPort = 29500;  // torchrun's, where --master-port is not given

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    words.insert(words.end(), setting.arguments.begin(), setting.arguments.end());
  }
  return words;
}

// How many ranks the largest host has; that of another host is not known.
int most_ranks(const RunOptions& options) {
  if (options.hosts.empty()) return options.rdzv_endpoint.empty() ? options.agent.job.ranks : kMostRanks;
  int most = 0;
  for (const auto& [name, ranks] : options.hosts) most = std::max(most, ranks > 0 ? ranks : options.agent.job.ranks);
  return most;
}

void complete_output(const RunArguments& from, RunOptions& options) {
  RankOutputOptions& output = options.agent.output;
  if (const auto text = EnvironmentReader().text(kPrefixTemplateVariable)) {
    output.prefix_template = fill_in(*text, "role_name", options.agent.job.role);
    output.prefix = PrefixMode::always;
  }
  if (from.prefix) output.prefix = PrefixMode::always;
  if (from.no_prefix) output.prefix = PrefixMode::never;
  const int ranks = most_ranks(options);
  check_streams("--redirects", output.redirects, ranks);
  check_streams("--tee", output.tee, ranks);
  check_local_ranks("--local-ranks-filter", output.shown_ranks, ranks);
}

// What one host alone can be told does not go with a list of hosts.
void check_hosts(const RunOptions& options) {
  if (options.hosts.empty()) return;
  const auto refuse = [](const char* option) { throw CLI::ValidationError(option, "it cannot be used with --hosts"); };
  if (options.standalone) refuse("--standalone");
  if (options.agent.node_rank) refuse("--node-rank");
  if (!options.agent.local_addr.empty()) refuse("--local-addr");
  const auto count = static_cast<int>(options.hosts.size());
  if (options.chooses_nodes && (options.agent.machine.least != count || options.agent.machine.most != count)) {
    throw CLI::ValidationError("--nnodes", fmt::format("--hosts names {}", count));
  }
}

// torchrun's "static" rendezvous: every host knows its number and the address of the first.
void complete_meeting(RunOptions& options) {
  AgentOptions& agent = options.agent;
  check_hosts(options);
  if (options.standalone) {
    if (agent.machine.most > 1)
      throw CLI::ValidationError("--standalone", "it is for one host, but --nnodes asks for more");
    options.rdzv_endpoint.clear();
  }
  const bool meets = agent.machine.most > 1 && options.hosts.empty();
  if (!meets || !options.rdzv_endpoint.empty() || agent.master_addr.empty()) return;
  options.rdzv_endpoint =
      fmt::format("{}:{}", agent.master_addr, agent.master_port != 0 ? agent.master_port : kStaticPort);
  agent.master_addr.clear();
  agent.master_port = 0;
}

RunOptions options_of(const RunParser& parser) {
  const RunArguments& from = parser.arguments();
  RunOptions options = from.run;
  if (from.style.module && from.style.no_python)
    throw CLI::ValidationError("--module", "it cannot be used with --no-python");
  options.given = parser.given();
  AgentOptions& agent = options.agent;
  agent.argv = command_of(parser.program(), from.style);
  agent.arguments = parser.program();
  agent.arguments.erase(agent.arguments.begin());
  agent.program = std::filesystem::path(parser.program().front()).filename().string();
  complete_meeting(options);
  complete_output(from, options);
  if (agent.flight.empty()) agent.flight = EnvironmentReader().text(kFlightDirectoryVariable).value_or("");
  if (!from.numa_binding.empty() && options.bind.empty()) {
    options.bind = from.numa_binding == "node" ? "numa" : from.numa_binding == "socket" ? "socket" : "core";
  }
  return options;
}

// Each setting alone, so that what is wrong is told with its place. Local ranks are checked with the rest, when their
// number is known.
void check(const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    try {
      RunParser alone(true);
      std::vector<std::string> words{"run"};
      words.insert(words.end(), setting.arguments.begin(), setting.arguments.end());
      words.insert(words.end(), {"--", "program"});
      alone.parse(words);
    } catch (const CLI::Error& error) {
      throw CLI::ValidationError(setting.place, error.what());
    }
  }
}

RunOptions read(const std::vector<std::string>& words) {
  RunParser line(true);
  line.parse(words);
  if (line.wants_all_help()) throw CLI::CallForAllHelp();
  const RunArguments& given = line.arguments();
  if (given.prefix && given.no_prefix) throw CLI::ValidationError("--prefix", "it cannot be used with --no-prefix");
  const std::vector<Setting> variables = settings_of_environment(line.names(), EnvironmentReader());
  std::vector<Setting> file;
  if (!given.config.empty()) file = settings_of_file(line.names(), given.config);
  check(variables);
  check(file);
  std::vector<std::string> all = joined(joined({"run"}, file), variables);
  all.insert(all.end(), words.begin() + 1, words.end());
  RunParser parser(true);
  parser.parse(all);
  RunOptions options = options_of(parser);
  // A flag cannot be taken back by another one behind it.
  if (given.prefix) {
    options.agent.output.prefix = PrefixMode::always;
    std::erase(options.given, "--no-prefix");
  }
  if (given.no_prefix) {
    options.agent.output.prefix = PrefixMode::never;
    std::erase(options.given, "--prefix");
  }
  return options;
}

}  // namespace

std::string help_of_run() { return RunParser(true).help(); }

std::optional<RunOptions> read_run(const std::vector<std::string>& words, int& exit_code) {
  exit_code = 0;
  try {
    return read(words);
  } catch (const CLI::CallForAllHelp&) {
    print(help_of_run());
  } catch (const CLI::CallForHelp&) {
    print(RunParser(false).help());
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "lockstep: %s\nTry 'lockstep run --help'.\n", error.what());
    exit_code = kUsageExitCode;
  }
  return std::nullopt;
}

}  // namespace lockstep::tools
