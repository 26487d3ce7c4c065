#include "tools/dry_run.h"

#include <unistd.h>

#include <array>
#include <map>

#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/job/launch/shell_quoted.h"
#include "lockstep/job/launch/ssh_hosts.h"

namespace lockstep::tools {
namespace {

std::string quoted(std::vector<std::string> words) {
  for (std::string& word : words) word = shell_quoted(word);
  return fmt::format("{}", fmt::join(words, " "));
}

std::string ranks_of(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, first + count - 1);
}

// A line for the choice of each local rank.
std::string describe_streams(const char* where, const std::map<int, int>& streams) {
  constexpr std::array<const char*, 4> kNames{"none", "standard output", "standard error", "both streams"};
  std::string text;
  for (const auto& [rank, value] : streams) {
    const std::string whose = rank < 0 ? "of all ranks" : fmt::format("of local rank {}", rank);
    text += fmt::format("{}: {} {}\n", where, kNames[static_cast<std::size_t>(value)], whose);
  }
  return text;
}

}  // namespace

std::string describe_run(const RunOptions& options, const std::string& path) {
  std::string text;
  if (!options.hosts.empty()) {
    int first = 0;
    for (const auto& [host, given] : options.hosts) {
      const int count = given > 0 ? given : options.agent.job.ranks;
      const char* how = is_this_host(host) ? "which is this one" : "over ssh";
      text += fmt::format("host {}: {}, {}\n", host, ranks_of(first, count), how);
      first += count;
    }
  } else if (options.rdzv_endpoint.empty()) {
    text += fmt::format("host {}: {}\n", host_name(), ranks_of(0, options.agent.job.ranks));
  } else {
    text += fmt::format("host {}: {} rank{}, numbered when all have met at {}\n", host_name(), options.agent.job.ranks,
                        options.agent.job.ranks == 1 ? "" : "s", options.rdzv_endpoint);
    text += options.agent.machine.least == options.agent.machine.most
                ? fmt::format("hosts: {}\n", options.agent.machine.least)
                : fmt::format("hosts: {} to {}\n", options.agent.machine.least, options.agent.machine.most);
  }
  const std::string& program = options.agent.argv.front();
  text += path.empty() ? fmt::format("program: {}, to be found on each host\n", program)
                       : fmt::format("program: {}\n", path);
  text += fmt::format("command: {}\n", quoted(options.agent.argv));
  for (const auto& [name, value] : options.agent.job.environment) {
    text += fmt::format("variable: {}={}\n", name, shell_quoted(value));
  }
  text += fmt::format("restarts after a failure: {}\n", options.agent.machine.max_restarts);
  if (options.hang_timeout) {
    text += fmt::format("a job that hangs ends after: {} s\n", options.hang_timeout->count() / 1000.0);
  }
  if (!options.bind.empty()) text += fmt::format("bound to: {}\n", options.bind);
  if (options.limits.any()) text += fmt::format("limits of each rank: {}\n", describe(options.limits));
  if (!options.agent.output.log_directory.empty())
    text += fmt::format("log files: {}\n", options.agent.output.log_directory);
  text += describe_streams("to files alone", options.agent.output.redirects);
  text += describe_streams("to files, too", options.agent.output.tee);
  if (!options.report.empty()) text += fmt::format("report: {}\n", options.report);
  if (options.metrics.endpoint)
    text += fmt::format("metrics: http://{}/metrics\n", to_string(*options.metrics.endpoint));
  if (!options.metrics.textfile.empty()) text += fmt::format("metrics as a file: {}\n", options.metrics.textfile);
  if (!options.agent.flight.empty()) text += fmt::format("recordings: {}\n", options.agent.flight);
  return text;
}

}  // namespace lockstep::tools
