#include "tools/run_command.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/job/elastic/meeting_point.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/placement.h"
#include "lockstep/job/launch/program_path.h"
#include "lockstep/job/launch/rank_cgroups.h"
#include "lockstep/job/launch/report_file.h"
#include "lockstep/job/launch/ssh_hosts.h"
#include "tools/cluster_place.h"
#include "tools/dry_run.h"
#include "tools/run_job.h"
#include "tools/run_over_ssh.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

using namespace internal;

namespace {

void print_error(const std::exception& error) { say_on_standard_error(error.what(), LogLevel::error); }

std::string search_path() { return EnvironmentReader().text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

// Streams that are to go to files need a folder for them.
RunOptions with_log_directory(const RunOptions& options) {
  RunOptions complete = options;
  RankOutputOptions& output = complete.agent.output;
  const bool duplicates = !output.duplicated[0].empty() || !output.duplicated[1].empty();
  if (!output.log_directory.empty() || (!output.chooses_streams && !duplicates)) return complete;
  std::string folder = "lockstep-logs-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    throw Error(ErrorKind::invalid_argument,
                std::string("cannot make a folder for log files here: ") + std::strerror(errno) + "; use --log-dir");
  }
  output.log_directory = folder;
  if (!output.chooses_streams) output.chooses_streams = true;  // only the lines that are asked for
  say_on_standard_error("log files are in " + folder);
  return complete;
}

// The user is told before any rank has started, and of the option.
std::string find_hook(const std::string& name) {
  try {
    return find_program(name, search_path());
  } catch (const ExecFailed& error) {
    throw Error(ErrorKind::invalid_argument, std::string("--on-event: ") + error.what());
  }
}

}  // namespace

int run_command(const RunOptions& given) {
  occupy_standard_descriptors();
  // For this launcher, for those that it starts on other hosts, and for the ranks.
  if (!given.log_format.empty()) ::setenv("LOCKSTEP_LOG_FORMAT", given.log_format.c_str(), 1);
  try {
    EnvironmentReader().choice("LOCKSTEP_LOG_FORMAT");
    std::string_view host_timeout;
    for (const auto& [key, value] : given.rdzv_config) {
      if (key != "host_timeout") continue;
      ::setenv("LOCKSTEP_HOST_TIMEOUT", value.c_str(), 1);
      host_timeout = "--rdzv-conf host_timeout";
    }
    EnvironmentReader().duration("LOCKSTEP_HOST_TIMEOUT", host_timeout);
    parse_binding(given.bind);
    const int most_hosts = std::max(given.agent.machine.most, static_cast<int>(given.hosts.size()));
    if (!given.rdzv_endpoint.empty()) parse_meeting_point(given.rdzv_endpoint, most_hosts);
    if (!given.hosts.empty() && !given.dry_run) return run_over_ssh(given);
    const RunOptions options = given.hosts.empty() ? in_cluster(given) : given;
    if (!given.report.empty()) check_report_directory(given.report);
    const bool is_here = std::ranges::all_of(given.hosts, [](const auto& host) { return is_this_host(host.first); });
    const std::string path = is_here ? find_program(options.agent.argv.front(), search_path()) : "";
    if (options.dry_run) {
      print(describe_run(options, path));
      return end_standard_output(EXIT_SUCCESS, EXIT_FAILURE);
    }
    RunOptions complete = with_log_directory(options);
    if (!complete.on_event.empty()) complete.on_event = find_hook(complete.on_event);
    std::optional<JobCgroup> cgroup;
    if (complete.limits.any()) cgroup.emplace(complete.limits);
    const JobCgroup* const held = cgroup ? &*cgroup : nullptr;
    return run_job(complete, path, held);
  } catch (const ExecFailed& error) {
    print_error(error);
    return error.shell_code();
  } catch (const Error& error) {
    print_error(error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : kRendezvousExitCode;
  }
}

}  // namespace lockstep::tools
