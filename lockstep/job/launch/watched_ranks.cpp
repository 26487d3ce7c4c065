#include "lockstep/job/launch/watched_ranks.h"

#include <algorithm>

namespace lockstep::internal {

void WatchedRanks::start(const std::vector<int>& pids) {
  for (const int pid : pids) {
    ranks_.push_back({.rank = first_rank_ + static_cast<int>(ranks_.size()), .pid = pid, .is_alive = true});
  }
  is_watching_ = true;
}

void WatchedRanks::end(const RankEnd& end) {
  if (!end.failure.text.empty()) is_watching_ = false;
  for (WatchedRank& rank : ranks_) rank.is_alive = rank.is_alive && rank.rank != end.rank;
  is_watching_ = is_watching_ && std::ranges::any_of(ranks_, &WatchedRank::is_alive);
}

}  // namespace lockstep::internal
