#include "tools/jobs_of_hosts.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/elastic/meeting_point.h"
#include "lockstep/job/inspect/job_table.h"
#include "lockstep/job/launch/launcher_line.h"

namespace lockstep::tools {
namespace {

constexpr Duration kAnswer = std::chrono::seconds(5);
// Of a job on this machine: before its agent here takes a silent first host for lost, and ends its ranks.
constexpr Duration kAnswerHere = std::chrono::milliseconds(1500);

// What its hosts say counts more than what is seen here.
void add_ranks(const JobStatus& status, Job& job) {
  std::map<int, JobRank> ranks;
  for (const HostStatus& host : status.hosts) {
    for (JobRank& rank : ranks_of_json(host.host, host.ranks)) ranks.emplace(rank.rank, std::move(rank));
  }
  for (JobRank& rank : job.ranks) ranks.emplace(rank.rank, std::move(rank));
  job.ranks.clear();
  for (auto& [number, rank] : ranks) job.ranks.push_back(std::move(rank));
  job.world_size = status.job.world_size;
}

}  // namespace

OutsideJob outside_job(const Job& job) {
  const UniqueFd fd(
      ::open(fmt::format("/proc/{}/fd/{}", job.launcher_pid, job.token_fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the launcher of job {} (pid {}) has ended, or does not allow this process to inspect it",
                            job.id, job.launcher_pid));
  }
  return {.endpoint = parse_meeting_point(job.rdzv_endpoint, kMostHosts),
          .rdzv_id = job.run_id,
          .token = Token::from_fd(fd.get())};
}

OutsideJob outside_job(const std::string& endpoint, const std::string& rdzv_id) {
  return {.endpoint = parse_meeting_point(endpoint, kMostHosts),
          .rdzv_id = rdzv_id.empty() ? "default" : rdzv_id,
          .token = Token::for_this_process()};
}

std::vector<Job> find_jobs_of_hosts() {
  std::vector<Job> jobs = find_jobs();
  for (Job& job : jobs) {
    if (job.rdzv_endpoint.empty() || static_cast<int>(job.ranks.size()) >= job.world_size) continue;
    try {
      add_ranks(ask_status(outside_job(job), Deadline::after(kAnswerHere)), job);
    } catch (const Error& error) {
      const std::string text =
          fmt::format("job {}: only its ranks on this machine are shown: {}", job.id, error.what());
      say_on_standard_error(text, LogLevel::warning);
    }
  }
  return jobs;
}

Job find_job_at(const OutsideJob& outside) {
  const JobStatus status = ask_status(outside, Deadline::after(kAnswer));
  Job job{.id = printable(status.job.job_id), .run_id = outside.rdzv_id};
  add_ranks(status, job);
  return job;
}

}  // namespace lockstep::tools
