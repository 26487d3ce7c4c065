#include "tools/run_arguments.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/job/launch/fill_in.h"
#include "tools/run_command.h"
#include "tools/run_over_ssh.h"
#include "tools/run_parser.h"
#include "tools/run_values.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

constexpr int kStaticPort = 29500;  // torchrun's, where --master-port is not given

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    words.insert(words.end(), setting.arguments.begin(), setting.arguments.end());
  }
  return words;
}

std::vector<std::pair<std::string, int>> read_hosts(const std::string& text) {
  try {
    return text.empty() ? std::vector<std::pair<std::string, int>>() : parse_hosts(text);
  } catch (const Error& error) {
    throw CLI::ValidationError(error.what());
  }
}

// How many ranks the largest host has; that of another host is not known.
int most_ranks(const RunOptions& options) {
  if (options.hosts.empty()) return options.rdzv_endpoint.empty() ? options.ranks : kMostRanks;
  int most = 0;
  for (const auto& [name, ranks] : options.hosts) most = std::max(most, ranks > 0 ? ranks : options.ranks);
  return most;
}

void set_output(const RunArguments& from, RunOptions& options) {
  RankOutputOptions& output = options.output;
  if (const auto text = EnvironmentReader().text(kPrefixTemplateVariable)) {
    output.prefix_template = fill_in(*text, "role_name", options.role);
    output.prefix = PrefixMode::always;
  }
  const int ranks = most_ranks(options);
  if (from.prefix) output.prefix = PrefixMode::always;
  if (from.no_prefix) output.prefix = PrefixMode::never;
  output.redirects = parse_streams("--redirects", from.redirects, ranks);
  output.tee = parse_streams("--tee", from.tee, ranks);
  output.chooses_streams = !from.redirects.empty() || !from.tee.empty();
  output.shown_ranks = parse_local_ranks("--local-ranks-filter", from.shown_ranks, ranks);
  output.duplicated = {parse_filters(from.stdout_filters), parse_filters(from.stderr_filters)};
}

// What one host alone can be told does not go with a list of hosts.
void check_hosts(const RunOptions& options) {
  if (options.hosts.empty()) return;
  const auto refuse = [](const char* option) { throw CLI::ValidationError(option, "it cannot be used with --hosts"); };
  if (options.standalone) refuse("--standalone");
  if (options.node_rank) refuse("--node-rank");
  if (!options.local_addr.empty()) refuse("--local-addr");
  const auto count = static_cast<int>(options.hosts.size());
  if (options.chooses_nodes && (options.nodes.least != count || options.nodes.most != count)) {
    throw CLI::ValidationError("--nnodes", fmt::format("--hosts names {}", count));
  }
}

// torchrun's "static" rendezvous: every host knows its number and the address of the first.
void set_meeting(const RunArguments& from, RunOptions& options) {
  options.chooses_nodes = !from.nodes.empty();
  if (options.chooses_nodes) options.nodes = parse_nodes(from.nodes);
  if (from.node_rank >= 0) options.node_rank = from.node_rank;
  options.rdzv_config = parse_config("--rdzv-conf", from.rdzv_config);
  options.hosts = read_hosts(from.hosts);
  check_hosts(options);
  if (options.standalone) {
    if (options.nodes.most > 1)
      throw CLI::ValidationError("--standalone", "it is for one host, but --nnodes asks for more");
    options.rdzv_endpoint.clear();
  }
  const bool meets = options.nodes.most > 1 && options.hosts.empty();
  if (!meets || !options.rdzv_endpoint.empty() || options.master_addr.empty()) return;
  options.rdzv_endpoint =
      fmt::format("{}:{}", options.master_addr, options.master_port != 0 ? options.master_port : kStaticPort);
  options.master_addr.clear();
  options.master_port = 0;
}

RunOptions options_of(const RunParser& parser) {
  const RunArguments& from = parser.arguments();
  RunOptions options = from.run;
  if (from.style.module && from.style.no_python) throw CLI::ValidationError("--module", "it excludes --no-python");
  options.program = command_of(parser.program(), from.style);
  options.program_arguments = parser.program();
  options.program_arguments.erase(options.program_arguments.begin());
  options.program_name = std::filesystem::path(parser.program().front()).filename().string();
  options.ranks = parse_ranks(from.ranks);
  options.limits = {.memory_bytes = parse_memory(from.memory_per_rank), .cpus = parse_cpus(from.cpus_per_rank)};
  set_meeting(from, options);
  set_output(from, options);
  options.shutdown_timeout = milliseconds(from.shutdown_timeout_seconds);
  options.stop_grace = milliseconds(from.stop_grace_seconds);
  if (from.hang_timeout_seconds > 0) options.hang_timeout = milliseconds(from.hang_timeout_seconds);
  options.signals_to_handle = parse_signals("--signals-to-handle", from.signals);
  if (options.flight.empty()) options.flight = EnvironmentReader().text(kFlightDirectoryVariable).value_or("");
  for (const std::string& text : from.environment) options.environment.push_back(parse_variable("--env", text));
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
      RunArguments given = alone.arguments();
      parse_ranks(given.ranks);
      if (!given.nodes.empty()) parse_nodes(given.nodes);
      parse_signals("--signals-to-handle", given.signals);
      parse_config("--rdzv-conf", given.rdzv_config);
      parse_memory(given.memory_per_rank);
      parse_cpus(given.cpus_per_rank);
      read_hosts(given.hosts);
      parse_streams("--redirects", given.redirects, kMostRanks);
      parse_streams("--tee", given.tee, kMostRanks);
      parse_local_ranks("--local-ranks-filter", given.shown_ranks, kMostRanks);
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
  if (given.prefix && given.no_prefix) throw CLI::ValidationError("--prefix", "it excludes --no-prefix");
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
  if (given.prefix) options.output.prefix = PrefixMode::always;
  if (given.no_prefix) options.output.prefix = PrefixMode::never;
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
