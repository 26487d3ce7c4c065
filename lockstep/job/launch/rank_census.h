// A RankCensus reads once a second what the ranks of a process tree count, from their flight recordings, and passes it
// on. The ranks do not notice. One per attempt; used by the thread of the tree's loop.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/job/launch/flight_recordings.h"
#include "lockstep/job/launch/rank_status.h"
#include "lockstep/job/launch/tree_guest.h"

namespace lockstep::internal {

class RankCensus final : public TreeGuest {
 public:
  // Borrows the recordings. `report` gets all ranks of this host.
  using Report = std::function<void(const std::vector<RankStatus>& ranks)>;
  RankCensus(const FlightRecordings& recordings, int first_rank, Report report);

  void on_start(const std::vector<int>& pids) override;
  void on_end(const RankEnd& end) override;
  Deadline wake_at() const override { return ranks_.empty() ? Deadline::never() : next_look_; }
  TreeOrder serve(std::span<const pollfd> ready) override;
  // Once more, when the tree has ended.
  void finish() { look(); }

 private:
  void look();

  const FlightRecordings& recordings_;
  const int first_rank_;
  const Report report_;
  std::vector<RankStatus> ranks_;
  Deadline next_look_;
};

// How late each rank begins the collectives that all of them have begun lately, on average; empty if there are none.
std::vector<std::int64_t> mean_lateness_ns(const std::vector<const FlightMemory*>& memories);

}  // namespace lockstep::internal
