#include "lockstep/launch/spawn.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/cores.h"
#include "lockstep/launch/local_job.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/spawn_report.h"

namespace lockstep {
namespace {

constexpr const char* kCallVariable = "LOCKSTEP_SPAWN";           // the call that a copy was started for: "main#3"
constexpr const char* kReportVariable = "LOCKSTEP_SPAWN_REPORT";  // its descriptor

// The same name in the parent and in the copies, which make the same calls before.
std::string next_call(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::lock_guard lock(mutex);
  return fmt::format("{}#{}", name, ++calls[name]);
}

int required_number(const char* name) {
  if (const auto number = EnvironmentReader().number(name)) return *number;
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is set, which is for spawn() alone, and {} is not; unset {}",
                                                       kCallVariable, name, kCallVariable));
}

[[noreturn]] void run_worker(const std::function<void(int rank)>& worker, bool line_by_line) {
  const int rank = required_number("RANK");
  SpawnReport report = SpawnReport::inherited(required_number(kReportVariable));
  // A spawn() inside the worker starts a new job.
  ::unsetenv(kCallVariable);
  ::unsetenv(kReportVariable);
  if (line_by_line) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  report.write_reached();
  try {
    worker(rank);
  } catch (...) {
    report.write_raised(std::current_exception());
    std::cout.flush();
    std::fflush(nullptr);
    // Not exit(): a static destructor that waits for a peer would hide the failure.
    ::_exit(1);
  }
  std::exit(0);
}

Failure judge(const LocalJob& job, const SpawnReport& report, const std::string& name, int rank,
              const ExitStatus& status) {
  Failure failure = job.judge(rank, status);
  const SpawnReport::Content content = report.read();
  if (content.raised) {
    failure.text = "raised: " + content.what;
    if (content.lost_a_peer) failure.fault = Fault::consequence;
  } else if (!content.reached) {
    failure.text = fmt::format(
        "{} before it reached spawn(\"{}\"): the copies of the program must take the same path to that call "
        "as the process that started them",
        describe(status), name);
  }
  return failure;
}

ErrorDetail at_rank(int rank) {
  ErrorDetail detail;
  detail.rank = rank;
  return detail;
}

// The signal's disposition is that of before spawn(): the default action ends this process.
[[noreturn]] void pass_on(int signal) {
  std::cout.flush();
  std::fflush(nullptr);
  ::raise(signal);
  throw Error(ErrorKind::aborted, fmt::format("spawn() was stopped by {}", signal_name(signal)));
}

void supervise(int argc, char** argv, const std::string& call, const SpawnOptions& options) {
  const int ranks = options.nprocs == 0 ? available_cores() : options.nprocs;
  if (ranks < 0) throw Error(ErrorKind::invalid_argument, fmt::format("spawn(): nprocs is {}", ranks));
  if (options.threads_per_rank < 0) {
    throw Error(ErrorKind::invalid_argument, fmt::format("spawn(): threads_per_rank is {}", options.threads_per_rank));
  }
  occupy_standard_descriptors();
  std::cout.flush();
  std::fflush(nullptr);
  const LocalJob job({.ranks = ranks, .threads_per_rank = options.threads_per_rank});
  std::vector<SpawnReport> reports;
  for (int rank = 0; rank < ranks; ++rank) reports.push_back(SpawnReport::create());
  std::vector<Command> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    const int report_fd = reports[static_cast<std::size_t>(rank)].fd();
    Command command = job.command(rank, "/proc/self/exe", std::vector<std::string>(argv, argv + argc));
    command.environment.push_back(fmt::format("{}={}", kCallVariable, call));
    command.environment.push_back(fmt::format("{}={}", kReportVariable, report_fd));
    command.keep_fds.push_back(report_fd);
    commands.push_back(std::move(command));
  }
  std::optional<RankOutput> output;
  if (options.prefix_output) output.emplace(RankOutputOptions{.prefix = PrefixMode::always}, ranks);
  TreeOptions tree{.grace = options.grace, .job_id = job.id(), .output = output ? &*output : nullptr};
  tree.judge = [&job, &reports, &options](int rank, const ExitStatus& status) {
    return judge(job, reports[static_cast<std::size_t>(rank)], options.name, rank, status);
  };
  const Outcome outcome = run_process_tree(std::move(commands), tree);
  if (const std::string line = job.recordings().save(outcome); !line.empty()) log_info(line);
  if (const RankEnd* first = outcome.first_failure()) {
    const ExitStatus& status = first->status;
    throw ProcessFailed(describe_failure(*first), first->rank, first->pid, status.signal != 0 ? -1 : status.code,
                        status.signal);
  }
  if (outcome.stop_signal != 0) pass_on(outcome.stop_signal);
}

}  // namespace

ProcessFailed::ProcessFailed(const std::string& message, int rank, int pid, int exit_code, int signal)
    : Error(ErrorKind::peer_lost, message, at_rank(rank)), pid_(pid), exit_code_(exit_code), signal_(signal) {}

void spawn(int argc, char** argv, const std::function<void(int rank)>& worker, const SpawnOptions& options) {
  const std::string call = next_call(options.name);
  const std::string wanted = EnvironmentReader().text(kCallVariable).value_or("");
  if (wanted.empty()) {
    supervise(argc, argv, call, options);
  } else if (wanted == call) {
    run_worker(worker, options.prefix_output);
  }
}

}  // namespace lockstep
