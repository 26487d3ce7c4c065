// The ranks of a process tree that are watched for hangs: which of them live, and whether a hang is still looked for.
// Not thread-safe.
#pragma once

#include <vector>

#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct WatchedRank {
  int rank = -1;
  int pid = 0;
  bool is_alive = false;
};

class WatchedRanks {
 public:
  explicit WatchedRanks(int first_rank) : first_rank_(first_rank) {}

  void start(const std::vector<int>& pids);
  // What follows a failure is not a hang.
  void end(const RankEnd& end);
  // Nothing is looked for any more: ranks that are told to stop have a time limit of their own.
  void stop() { is_watching_ = false; }

  bool is_watching() const { return is_watching_; }
  const std::vector<WatchedRank>& all() const { return ranks_; }

 private:
  const int first_rank_;
  std::vector<WatchedRank> ranks_;
  bool is_watching_ = false;  // before the start
};

}  // namespace lockstep::internal
