// Cgroups (version 2) that hold the ranks of this host to their limits. The launcher's own cgroup, which it must be
// allowed to divide, gets for the time of the job
//   lockstep-<pid> / launcher             this process: the kernel wants a group that has parts to have no processes
//                  / rank_<r>.<attempt>   a rank and all that it starts
// Blocks only where it says so. Not thread-safe. Errors: Error{invalid_argument} where no such groups can be made, with
// the reason and what to do; Error{internal} if the kernel refuses something later.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/rank_limits.h"

namespace lockstep::internal {

// One rank's in one attempt, so its counters begin at 0.
class RankCgroup {
 public:
  RankCgroup(std::string folder, const RankLimits& limits);
  ~RankCgroup();  // removes it, once its last process has ended: waits for at most a second
  RankCgroup(const RankCgroup&) = delete;
  RankCgroup& operator=(const RankCgroup&) = delete;

  const std::string& folder() const { return folder_; }
  const RankLimits& limits() const { return limits_; }
  // A process that writes "0" here is in the group from then on.
  int processes_fd() const { return processes_.get(); }
  LimitUse use() const;

 private:
  std::string folder_;
  RankLimits limits_;
  UniqueFd processes_;
};

class JobCgroup {
 public:
  // Moves this process. REQUIRES: limits.any().
  explicit JobCgroup(const RankLimits& limits);
  ~JobCgroup();  // moves it back, and leaves everything as it was
  JobCgroup(const JobCgroup&) = delete;
  JobCgroup& operator=(const JobCgroup&) = delete;

  const RankLimits& limits() const { return limits_; }
  std::string folder_of(int rank, int attempt) const;

 private:
  void divide();
  void undo() noexcept;

  RankLimits limits_;
  std::string own_;     // this process's, when it began
  std::string folder_;  // of the job
  std::vector<std::string> controllers_;
};

// The folder of a process's cgroup v2. `cgroups`, `mounts`: its /proc/self/cgroup and mountinfo.
std::string find_own_cgroup(const std::string& cgroups, const std::string& mounts);
// What is to be switched on for the parts of this group, which process `pid` is to divide: what limits need, and
// "memory" in any case, as it tells of kills. Error{invalid_argument} if it cannot be divided.
std::vector<std::string> controllers_for(const std::string& folder, const RankLimits& limits, int pid);

}  // namespace lockstep::internal
