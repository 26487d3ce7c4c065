#include "tools/stop_command.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/inspect/job_list.h"
#include "lockstep/job/launch/end_note.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/process_status.h"
#include "tools/jobs_of_hosts.h"
#include "tools/run_command.h"
#include "tools/seconds_range.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

// What launchers take for a request to stop, unless the user has told them otherwise (--signals-to-handle).
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// One that the launcher handles: a shell may have started it with SIGINT ignored, and one without a handler kills.
int signal_for(const Job& job) {
  const auto status = read_thread_status(job.launcher_pid, job.launcher_pid);
  for (const int signal : kSignals) {
    if (status && (status->caught >> (signal - 1) & 1) != 0) return signal;
  }
  throw Error(ErrorKind::invalid_argument, fmt::format("the launcher of job {} (pid {}) handles none of the usual "
                                                       "signals; send it one of its --signals-to-handle",
                                                       job.id, job.launcher_pid));
}

ino_t file_of(const UniqueFd& fd) {
  struct stat info {};
  return ::fstat(fd.get(), &info) == 0 ? info.st_ino : 0;
}

int tell_end(const std::string& job, const std::string& how) {
  print(fmt::format("job {} has ended{}\n", job, how.empty() ? "; its launcher did not report how" : " with " + how));
  return EXIT_SUCCESS;
}

int tell_timeout(const std::string& job, const StopOptions& options) {
  say_on_standard_error(fmt::format("job {} has not ended within {} s; run the same command again to kill its ranks",
                                    job, options.timeout_seconds),
                        LogLevel::error);
  return EXIT_FAILURE;
}

Deadline deadline_of(const StopOptions& options) {
  const auto time = std::chrono::duration<double>(options.timeout_seconds);
  return Deadline::after(std::chrono::duration_cast<Duration>(time));
}

int stop_here(const Job& job, const StopOptions& options) {
  const auto note = open_end_note(job.launcher_pid);
  if (!note) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("job {} was not started by 'lockstep run': stop the process that has started its ranks "
                            "(pid {})",
                            job.id, job.launcher_pid));
  }
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, job.launcher_pid, 0)));
  const int signal = pidfd ? signal_for(job) : 0;
  // The pid may have passed to another process, but not to one with this note.
  const auto again = open_end_note(job.launcher_pid);
  const bool is_there = pidfd && again && file_of(*again) == file_of(*note);
  if (is_there && ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) != 0 && errno != ESRCH) {
    throw system_error(fmt::format("sending {} to pid {}", signal_name(signal), job.launcher_pid), errno);
  }
  const Deadline deadline = deadline_of(options);
  pollfd entry{pidfd.get(), POLLIN, 0};
  while (is_there && ::poll(&entry, 1, deadline.poll_timeout_ms()) <= 0) {
    if (deadline.expired()) return tell_timeout(job.id, options);
  }
  return tell_end(job.id, read_end_note(*note));
}

int stop_hosts(const OutsideJob& outside, const std::string& name, const StopOptions& options) {
  const std::optional<Farewell> farewell = stop_job(outside, deadline_of(options));
  if (!farewell) return tell_timeout(name, options);
  const std::string why = farewell->text.empty() ? "" : ": " + printable(farewell->text);
  return tell_end(name, fmt::format("exit code {}{}", farewell->exit_code, why));
}

}  // namespace

CLI::App* add_stop(CLI::App& app, StopOptions& options) {
  CLI::App* stop = app.add_subcommand("stop", "Ask all ranks of a job to save and end, and wait until it has ended");
  stop->add_option("job", options.job,
                   "The job to stop, as 'lockstep ps' lists it: its id, the beginning of its id, or its --rdzv-id");
  stop->add_option("--rdzv-endpoint", options.rdzv_endpoint,
                   "Instead of JOB, from any host: HOST:PORT where the launchers of the job meet");
  stop->add_option("--rdzv-id", options.rdzv_id, "The job's name at that endpoint (default 'default')");
  stop->add_option("--timeout", options.timeout_seconds, "Seconds to wait for the end of the job (default 60)")
      ->check(seconds_range(0));
  stop->footer("Examples:\n  lockstep stop a785c3\n  lockstep stop --rdzv-endpoint h1:29400\n");
  stop->prefix_command(false);
  return stop;
}

int stop_command(const StopOptions& options) {
  try {
    if (options.job.empty() == options.rdzv_endpoint.empty()) {
      throw Error(ErrorKind::invalid_argument,
                  "stop: give either a job, as 'lockstep ps' shows it, or --rdzv-endpoint");
    }
    if (!options.rdzv_endpoint.empty()) {
      const OutsideJob outside = outside_job(options.rdzv_endpoint, options.rdzv_id);
      return stop_hosts(outside, outside.rdzv_id, options);
    }
    const Job job = choose_job(find_jobs(), options.job);
    return job.rdzv_endpoint.empty() ? stop_here(job, options) : stop_hosts(outside_job(job), job.id, options);
  } catch (const Error& error) {
    say_on_standard_error(error.what(), LogLevel::error);
    return error.kind() == ErrorKind::invalid_argument ? kUsageExitCode : EXIT_FAILURE;
  }
}

}  // namespace lockstep::tools
