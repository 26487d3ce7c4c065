#include "tools/dry_run.h"

#include <unistd.h>

#include <array>

#include "lockstep/base/format.h"
#include "lockstep/launch/shell_quoted.h"

namespace lockstep::tools {
namespace {

std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::string ranks_of(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, first + count - 1);
}

}  // namespace

std::string describe_run(const RunOptions& options, const std::string& path) {
  std::string text;
  if (!options.hosts.empty()) {
    int first = 0;
    for (const auto& [host, given] : options.hosts) {
      const int count = given > 0 ? given : options.ranks;
      text += fmt::format("host {}: {}, over ssh\n", host, ranks_of(first, count));
      first += count;
    }
  } else if (options.rdzv_endpoint.empty()) {
    text += fmt::format("host {}: {}\n", this_host(), ranks_of(0, options.ranks));
  } else {
    text += fmt::format("host {}: {} rank{}, numbered when all have met at {}\n", this_host(), options.ranks,
                        options.ranks == 1 ? "" : "s", options.rdzv_endpoint);
    text += options.nodes.least == options.nodes.most
                ? fmt::format("hosts: {}\n", options.nodes.least)
                : fmt::format("hosts: {} to {}\n", options.nodes.least, options.nodes.most);
  }
  text += fmt::format("program: {}\ncommand: {}\n", path, quoted(options.program));
  for (const auto& [name, value] : options.environment) {
    text += fmt::format("variable: {}={}\n", name, shell_quoted(value));
  }
  text += fmt::format("restarts after a failure: {}\n", options.max_restarts);
  if (!options.bind.empty()) text += fmt::format("bound to: {}\n", options.bind);
  if (!options.output.log_directory.empty()) text += fmt::format("log files: {}\n", options.output.log_directory);
  return text;
}

}  // namespace lockstep::tools
