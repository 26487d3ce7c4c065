#include "lockstep/job/launch/attempt.h"

#include <unistd.h>

#include <csignal>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/job/launch/fill_in.h"

namespace lockstep::internal {
namespace {

constexpr const char* kOuterJobsVariable = "LOCKSTEP_OUTER_JOBS";

// By what launchers other than this attempt's find its processes (job_processes.h): this host's tag, and the jobs
// around this one. Empty if there is none.
std::string outer_jobs(const std::string& tag) {
  const EnvironmentReader reader;
  std::string text = tag.empty() ? "" : fmt::format("LOCKSTEP_JOB_ID={}", tag);
  if (const auto job = reader.text("LOCKSTEP_JOB_ID")) {
    text += fmt::format("{}LOCKSTEP_JOB_ID={}", text.empty() ? "" : " ", *job);
    if (const auto around = reader.text(kOuterJobsVariable)) text += " " + *around;
  }
  return text;
}

}  // namespace

Attempt::Attempt(const LocalJob& job, Place place)
    : job_(job),
      place_(std::move(place)),
      recordings_(job.id(), place_.first_rank, job.options().ranks, place_.world_size),
      errors_(static_cast<std::size_t>(job.options().ranks)) {
  const JobCgroup* cgroup = job.options().cgroup;
  for (int rank = 0; cgroup != nullptr && rank < job.options().ranks; ++rank) {
    cgroups_.emplace_back(cgroup->folder_of(place_.first_rank + rank, place_.generation), cgroup->limits());
  }
}

Variables Attempt::variables(int rank) const {
  const std::string rank_text = std::to_string(rank);
  const std::string size = std::to_string(place_.world_size);
  const std::string restarts = std::to_string(place_.restarts);
  return {
      {"RANK", rank_text},
      {"LOCAL_RANK", std::to_string(local(rank))},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", std::to_string(job_.options().ranks)},
      {"GROUP_RANK", std::to_string(place_.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(place_.nodes)},
      {"ROLE_NAME", job_.options().role},
      {"ROLE_RANK", rank_text},
      {"ROLE_WORLD_SIZE", size},
      {"MASTER_ADDR", place_.master_addr},
      {"MASTER_PORT", std::to_string(place_.master_port)},
      {"RESTART_COUNT", restarts},
      {"TORCHELASTIC_RESTART_COUNT", restarts},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job_.options().max_restarts)},
      {"TORCHELASTIC_RUN_ID", job_.options().run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", errors_[static_cast<std::size_t>(local(rank))].path()},
      {"LOCKSTEP_STORE", place_.store},
      {"LOCKSTEP_TOKEN_FD", std::to_string(job_.token_fd())},
      {"LOCKSTEP_JOB_ID", job_.id()},
      {"LOCKSTEP_GENERATION", std::to_string(place_.generation)},
      {"OMP_NUM_THREADS", job_.threads(local(rank))},
  };
}

const RankCgroup* Attempt::cgroup(int rank) const {
  return cgroups_.empty() ? nullptr : &cgroups_[static_cast<std::size_t>(local(rank))];
}

Command Attempt::command(int rank, const std::string& path, const std::vector<std::string>& argv) const {
  Variables changes = variables(rank);
  // A job inside a rank of another job ends with that job.
  if (const std::string outer = outer_jobs(job_.options().tag); !outer.empty())
    changes.emplace_back(kOuterJobsVariable, outer);
  // A rank writes to a pipe; rank 0 may use '\r' to redraw a line if a terminal is behind the pipe.
  if (rank == 0 && ::isatty(STDOUT_FILENO) == 1) changes.emplace_back("LOCKSTEP_TERMINAL", "1");
  std::vector<int> kept{job_.token_fd()};
  if (const int fd = recordings_.fd(rank); fd >= 0) {
    kept.push_back(fd);
    changes.emplace_back(kFlightFdVariable, std::to_string(fd));
  }
  if (job_.options().virtual_local_rank) {
    changes.emplace_back("LOCAL_RANK", "0");
    changes.emplace_back("CUDA_VISIBLE_DEVICES", job_.device(local(rank)));
  }
  // Empty: not that of a job around this one.
  changes.emplace_back("LOCKSTEP_RESTART_REASON", place_.restart_reason);
  const Variables& given = job_.options().environment;
  changes.insert(changes.end(), given.begin(), given.end());
  std::vector<std::string> words = argv;
  for (std::string& word : words) word = fill_in(std::move(word), "local_rank", std::to_string(local(rank)));
  const bool reads_input = rank == 0 && ::isatty(STDIN_FILENO) == 0;
  const RankCgroup* own = cgroup(rank);
  return Command{.path = path,
                 .argv = std::move(words),
                 .environment = merge_environment(environ, changes),
                 .keep_fds = std::move(kept),
                 .stdin_fd = reads_input ? -1 : job_.null_fd(),
                 .cpu_mask = job_.placement(local(rank)).mask,
                 .cgroup_fd = own == nullptr ? -1 : own->processes_fd(),
                 .memory_node = job_.placement(local(rank)).memory_node};
}

Failure Attempt::judge(int rank, const ExitStatus& status) const {
  const RankCgroup* own = cgroup(rank);
  const std::optional<LimitUse> use = own == nullptr ? std::nullopt : std::optional(own->use());
  if (status.ok()) return {.limits = use};
  const LastOperation last = recordings_.last_operation(rank);
  Failure failure{.text = describe(status),
                  .last_operation = last.text,
                  .lateness_ns = last.lateness_ns,
                  .error = errors_[static_cast<std::size_t>(local(rank))].error(),
                  .limits = use};
  if (status.signal == SIGKILL) {
    const OomKills::Verdict verdict = oom_kills_.judge_kill(status.peak_bytes, own);
    failure.text += fmt::format(" ({})", verdict.text);
    failure.out_of_memory = verdict.out_of_memory;
  }
  const std::optional<FlightFailure> recorded = recordings_.failure(rank);
  if (!recorded || recorded->is_own) return failure;
  failure.blamed = recorded->peer;
  const ErrorKind kind = recorded->kind;
  if (kind == ErrorKind::peer_lost || kind == ErrorKind::aborted) failure.fault = Fault::consequence;
  if (kind == ErrorKind::desync || kind == ErrorKind::timeout) failure.fault = Fault::disagreement;
  return failure;
}

}  // namespace lockstep::internal
