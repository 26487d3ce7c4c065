#include "tools/run_command.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/local_job.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/program_path.h"
#include "lockstep/rendezvous/launchers.h"

namespace lockstep::tools {

using namespace internal;

namespace {

std::vector<std::pair<std::string, std::string>> environment_of(const RunOptions& options) {
  std::vector<std::pair<std::string, std::string>> environment;
  // Into a pipe Python writes whole blocks; what a rank printed last would come late, or never if it is killed.
  if (!EnvironmentReader().has("PYTHONUNBUFFERED")) environment.emplace_back("PYTHONUNBUFFERED", "1");
  environment.insert(environment.end(), options.environment.begin(), options.environment.end());
  return environment;
}

void print_error(const Error& error) { std::fprintf(stderr, "lockstep: %s\n", error.what()); }

// Another launcher may have started this one several times, where one job on all hosts was meant.
void warn_of_copies() {
  try {
    for (const Launch& launch : find_launches(EnvironmentReader())) {
      if (launch.rank != 0 || launch.size.value_or(1) == 1) continue;
      log_warning(std::string(launch.launcher) + " has started " + std::to_string(*launch.size) +
                  " copies of this launcher, and each starts a job of its own. For one job let it start the program "
                  "itself");
    }
  } catch (const Error&) {  // a job on this machine does not depend on them
  }
}

std::string search_path() { return EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

int exit_code(const Outcome& outcome) {
  if (const RankEnd* first = outcome.first_failure()) return first->status.shell_code();
  return outcome.stop_signal != 0 ? 128 + outcome.stop_signal : 0;
}

}  // namespace

int run_command(const RunOptions& options) {
  occupy_standard_descriptors();
  warn_of_copies();
  std::optional<LocalJob> job;
  std::string path;
  try {
    path = find_program(options.program.front(), search_path());
  } catch (const ExecFailed& error) {
    print_error(error);
    return error.shell_code();
  }
  try {
    job.emplace(JobOptions{.ranks = options.ranks,
                           .threads_per_rank = 0,
                           .master_addr = options.master_addr,
                           .master_port = options.master_port,
                           .environment = environment_of(options)});
  } catch (const Error& error) {
    print_error(error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : kStoreExitCode;
  }
  try {
    RankOutput output(options.output, options.ranks);
    output.say(job->description());
    std::vector<Command> commands;
    for (int rank = 0; rank < options.ranks; ++rank) commands.push_back(job->command(rank, path, options.program));
    const Outcome outcome =
        run_process_tree(std::move(commands),
                         {.grace = options.shutdown_timeout,
                          .job_id = job->id(),
                          .output = &output,
                          .judge = [&job](int rank, const ExitStatus& status) { return job->judge(rank, status); }});
    for (const std::string& line : report(outcome)) output.say(line);
    const std::string recordings = job->recordings().save(outcome, options.flight);
    if (!recordings.empty()) output.say(recordings);
    // Who waits for the launcher to stop should not wait for a reader that has paused.
    output.flush(outcome.stop_signal == 0 ? Deadline::never() : Deadline::after(std::chrono::seconds(1)));
    return exit_code(outcome);
  } catch (const ExecFailed& error) {
    print_error(error);
    return error.shell_code();
  } catch (const Error& error) {
    print_error(error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : EXIT_FAILURE;
  }
}

}  // namespace lockstep::tools
