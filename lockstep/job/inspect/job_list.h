// The jobs of this user on this machine, as `lockstep ps` and `lockstep top` show them: found by the variables of their
// ranks' processes in /proc, with what the ranks' flight memory holds. What another process has written there is
// checked before it is believed. Blocks for a moment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal {

struct JobRank {
  int rank = 0;
  std::string host = {};
  int pid = 0;
  char state = '?';  // as in ps: R, S, D, T, Z
  std::string program = {};
  int attempt = 0;
  double cpu_seconds = 0;  // since it began
  double age_seconds = 0;
  std::uint64_t resident_bytes = 0;
  // From its recording; empty and 0 if there is none.
  std::string doing = {};            // "in all_reduce(sum) #41 ..." or "after ..."
  double doing_seconds = 0;          // since when
  std::uint64_t operations = 0;      // begun so far
  double operations_per_second = 0;  // of the last ones
  double steps_per_second = 0;       // of DDP's backwards; 0: not known
};

struct Job {
  std::string id;
  int launcher_pid = 0;  // on this machine; 0: there is none
  int world_size = 0;
  std::vector<JobRank> ranks = {};  // by rank
  // For asking its other hosts, and for stopping it.
  std::string run_id = {};
  std::string rdzv_endpoint = {};  // empty: a job of one launcher
  int token_fd = -1;               // of the launcher
};

// Without what a terminal would obey: other processes have written it.
std::string printable(std::string text);

// By id. `proc`: where processes are listed.
std::vector<Job> find_jobs(const std::string& proc = "/proc");
// The one with this id or run id, or whose id alone begins so. Error{invalid_argument}, with those that there are, if
// there is none or more than one.
Job choose_job(const std::vector<Job>& jobs, const std::string& name);
// What the ranks of a job do; those that have ended are left out.
std::vector<JobRank> look_at_ranks(const std::string& job_id, const std::vector<int>& pids);

}  // namespace lockstep::internal
