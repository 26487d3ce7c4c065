// LocalJob is the launcher's side of a job on this machine, from its first attempt to its last: the job's id and token,
// and what each rank may use. See Attempt for what changes with a restart. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/launch/job_descriptors.h"
#include "lockstep/job/launch/placement.h"
#include "lockstep/job/launch/rank_cgroups.h"

namespace lockstep::internal {

using Variables = std::vector<std::pair<std::string, std::string>>;  // of an environment: name and value

struct JobOptions {
  int ranks = 1;             // on this host
  int threads_per_rank = 0;  // 0: OMP_NUM_THREADS if it is set, else cores / ranks (of its set, its limit), at least 1
  std::string role = "default";
  bool virtual_local_rank = false;      // each rank sees one GPU, as its device 0
  std::vector<Placement> placements{};  // by local rank; empty: the system decides
  const JobCgroup* cgroup = nullptr;    // borrowed; null: ranks have no limits
  Variables environment{};              // added last
  std::string tag{};                    // by which its processes are found besides the id, which other hosts share

  // The same on all hosts.
  int max_restarts = 0;          // for the ranks to know
  std::string run_id{};          // TORCHELASTIC_RUN_ID; empty: the job's id
  std::string id{};              // empty: a new one
  std::optional<Token> token{};  // nothing: a new one
};

class LocalJob {
 public:
  // Throws Error{invalid_argument} if the limit on descriptors is too low for so many ranks, or they are to have a GPU
  // each and CUDA_VISIBLE_DEVICES has fewer.
  explicit LocalJob(JobOptions options);

  const JobOptions& options() const { return options_; }  // with the job's id and run id
  const std::string& id() const { return options_.id; }
  const Token& token() const { return *options_.token; }
  int token_fd() const { return token_fd_.get(); }
  int null_fd() const { return null_.get(); }
  // By local rank: where it runs, and what OMP_NUM_THREADS says there.
  Placement placement(int local_rank) const;
  const std::string& threads(int local_rank) const { return threads_[static_cast<std::size_t>(local_rank)]; }
  // What CUDA_VISIBLE_DEVICES says in a rank that sees one GPU. REQUIRES: virtual_local_rank.
  const std::string& device(int local_rank) const { return devices_[static_cast<std::size_t>(local_rank)]; }
  // "2 ranks on this machine, 1 thread each (2 cores)"
  std::string description() const;

 private:
  JobOptions options_;
  JobDescriptors descriptors_;
  UniqueFd token_fd_;
  UniqueFd null_;
  int cores_;
  bool threads_from_user_ = false;
  std::vector<std::string> threads_;
  std::vector<std::string> devices_;
};

// One GPU for each of so many ranks, of those that CUDA_VISIBLE_DEVICES shows to the launcher: all if it is not set,
// none for any rank if it is empty or begins with -1. Throws Error{invalid_argument} if it has fewer.
std::vector<std::string> devices_of(const std::optional<std::string>& visible, int ranks);

// `base` (as environ) with `changes` made: each name occurs once, with its last value.
std::vector<std::string> merge_environment(const char* const* base, const Variables& changes);

}  // namespace lockstep::internal
