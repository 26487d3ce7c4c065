#include "lockstep/job/elastic/hello.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log_line.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/job/elastic/agent_link.h"
#include "lockstep/job/launch/job_store.h"

namespace lockstep::internal {

namespace {

std::string digest_of(const std::vector<std::string>& arguments) {
  std::string all;
  for (const std::string& each : arguments) all += fmt::format("{}:{}", each.size(), each);
  return fmt::format("{:016x}", hash_of(all));
}

// On one line.
std::vector<std::string> told(const std::vector<std::string>& arguments) {
  std::vector<std::string> told;
  for (const std::string& each : arguments) {
    if (told.size() == kMostArgumentsTold) break;
    std::string& text = told.emplace_back(each.substr(0, kMostArgumentBytesTold));
    std::ranges::replace_if(
        text, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  }
  return told;
}

// "has no argument 3", "has 'b' as argument 3"
std::string argument_text(const Hello& hello, std::size_t index) {
  if (index >= hello.arguments.size()) return fmt::format("has no argument {}", index + 1);
  return fmt::format("has '{}' as argument {}", hello.arguments[index], index + 1);
}

std::string difference_of_arguments(const Hello& theirs, const Hello& ours) {
  const auto [there, here] = std::ranges::mismatch(theirs.arguments, ours.arguments);
  if (there == theirs.arguments.end() && here == ours.arguments.end()) {
    return fmt::format("its program's arguments differ from those on the first host {}, in a part too long to show",
                       ours.host);
  }
  const auto index = static_cast<std::size_t>(here - ours.arguments.begin());
  return fmt::format("its program {}, and that on the first host {} {}", argument_text(theirs, index), ours.host,
                     argument_text(ours, index));
}

}  // namespace

std::string range_text(int least, int most) {
  return least == most ? std::to_string(least) : fmt::format("{}:{}", least, most);
}

std::string agent_host_name() { return log_host(); }

Hello hello_of(const AgentOptions& options) {
  return {.version = options.version,
          .rdzv_id = options.rdzv_id,
          .host = options.is_alone ? "" : agent_host_name(),
          .pid = static_cast<int>(local_identity(-1, 0, 0).pid),
          .ranks = options.job.ranks,
          .least = options.machine.least,
          .most = options.machine.most,
          .node_rank = options.node_rank.value_or(-1),
          .options = {fmt::format("--max-restarts {}", options.machine.max_restarts),
                      fmt::format("--rdzv-conf host_timeout={:g}", seconds(host_timeout())),
                      fmt::format("--stop-exit-code {}", options.machine.stop_exit_code)},
          .program = options.program,
          .master_port = options.master_port != 0 ? options.master_port : free_port(),
          .arguments = told(options.arguments),
          .arguments_digest = digest_of(options.arguments)};
}

HostEntry entry_of(int number, const Hello& hello) {
  HostEntry entry{.number = number, .name = hello.host, .ranks = hello.ranks};
  if (hello.node_rank >= 0) entry.wanted = hello.node_rank;
  entry.returns = !hello.handover.job_id.empty();
  return entry;
}

std::optional<std::string> objection(const Hello& theirs, const Hello& ours) {
  const auto differs = [&](std::string_view what, const std::string& there, const std::string& here) {
    return fmt::format("{} is {} there and {} on the first host {}; use the same on all hosts", what, there, here,
                       ours.host);
  };
  if (theirs.version != ours.version) return differs("Lockstep's version", theirs.version, ours.version);
  if (theirs.least != ours.least || theirs.most != ours.most) {
    return differs("--nnodes", range_text(theirs.least, theirs.most), range_text(ours.least, ours.most));
  }
  if (theirs.options != ours.options) {
    const auto [there, here] = std::ranges::mismatch(theirs.options, ours.options);
    return differs("an option", there == theirs.options.end() ? "not given" : *there,
                   here == ours.options.end() ? "not given" : *here);
  }
  if (theirs.program != ours.program) {
    return fmt::format(
        "its program is {}, but the job there runs {} under the same --rdzv-id {}; give each job a separate id",
        theirs.program, ours.program, ours.rdzv_id);
  }
  if (ours.rdzv_id == kDefaultRdzvId && theirs.arguments_digest != ours.arguments_digest) {
    return fmt::format(
        "{}; if it is a different job, give it a different --rdzv-id; if the arguments of one job differ by host, give "
        "all of its hosts the same --rdzv-id",
        difference_of_arguments(theirs, ours));
  }
  if (ours.most == 1) {
    return fmt::format("a job of one host runs there under the same --rdzv-id {}; give each job a separate id",
                       ours.rdzv_id);
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
