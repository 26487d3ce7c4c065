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
  int launcher_pid = 0;
  int world_size = 0;
  std::vector<JobRank> ranks;  // of this machine, by rank
};

// By id. `proc`: where processes are listed.
std::vector<Job> find_jobs(const std::string& proc = "/proc");

}  // namespace lockstep::internal
