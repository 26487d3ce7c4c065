// HangGuest lets a HangWatch look at the ranks of a process tree, passes on what it says, and ends the tree if they
// hang for too long. One per attempt. Not thread-safe; blocks as HangWatch.
#pragma once

#include <vector>

#include "lockstep/launch/hang_watch.h"
#include "lockstep/launch/rank_output.h"
#include "lockstep/launch/tree_guest.h"
#include "lockstep/launch/watched_ranks.h"

namespace lockstep::internal {

class HangGuest final : public TreeGuest {
 public:
  // Borrows recordings and output.
  HangGuest(const HangOptions& options, const FlightRecordings& recordings, int first_rank, RankOutput& output);

  void on_start(const std::vector<int>& pids) override { ranks_.start(pids); }
  Deadline wake_at() const override;
  TreeOrder serve(std::span<const pollfd> ready) override;
  bool on_signal(int signal) override;
  void on_end(const RankEnd& end) override { ranks_.end(end); }

  // Why the ranks hang; empty if they do not.
  const std::string& hang() const { return watch_.hang(); }
  // Why it has ended the tree; an empty text if it has not.
  const HangVerdict& verdict() const { return verdict_; }

 private:
  HangWatch watch_;
  RankOutput& output_;
  WatchedRanks ranks_;
  HangVerdict verdict_;
};

}  // namespace lockstep::internal
