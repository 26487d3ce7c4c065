#include "lockstep/elastic/hello.h"

#include <string_view>

#include "lockstep/base/format.h"
#include "lockstep/base/log_line.h"
#include "lockstep/launch/job_store.h"
#include "lockstep/net/handshake.h"

namespace lockstep::internal {

std::string range_text(int least, int most) {
  return least == most ? std::to_string(least) : fmt::format("{}:{}", least, most);
}

std::string agent_host_name() { return log_host(); }

Hello hello_of(const AgentOptions& options) {
  return {.version = options.version,
          .rdzv_id = options.rdzv_id,
          .host = agent_host_name(),
          .pid = static_cast<int>(local_identity(-1, 0, 0).pid),
          .ranks = options.ranks,
          .least = options.least,
          .most = options.most,
          .node_rank = options.node_rank.value_or(-1),
          .options = fmt::format("--max-restarts {}", options.max_restarts),
          .program = options.program,
          .master_port = options.master_port != 0 ? options.master_port : free_port()};
}

HostEntry entry_of(int number, const Hello& hello) {
  HostEntry entry{.number = number, .name = hello.host, .ranks = hello.ranks};
  if (hello.node_rank >= 0) entry.wanted = hello.node_rank;
  return entry;
}

std::optional<std::string> objection(const Hello& theirs, const Hello& ours) {
  const auto differs = [&](std::string_view what, const std::string& there, const std::string& here) {
    return fmt::format("{} is {} there and {} on the first host {}; start the same on all hosts", what, there, here,
                       ours.host);
  };
  if (theirs.version != ours.version) return differs("Lockstep's version", theirs.version, ours.version);
  if (theirs.least != ours.least || theirs.most != ours.most) {
    return differs("--nnodes", range_text(theirs.least, theirs.most), range_text(ours.least, ours.most));
  }
  if (theirs.options != ours.options) return differs("an option", theirs.options, ours.options);
  if (theirs.program != ours.program) {
    return fmt::format(
        "it is to run {}, and a job that runs {} is gathered there under the same --rdzv-id {}; give each "
        "job an id of its own",
        theirs.program, ours.program, ours.rdzv_id);
  }
  if (ours.most == 1) {
    return fmt::format(
        "a job of one host is gathered there under the same --rdzv-id {}; give each job an id of its own",
        ours.rdzv_id);
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
