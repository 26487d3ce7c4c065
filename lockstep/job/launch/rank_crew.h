// A RankCrew is the ranks of a process tree on this machine, all of them: how they are told to end. running -> asked
// (by a signal to each rank's program) -> stopping (SIGTERM to all of its processes) -> killing; steps may be left out.
// A rank's process that ends by the signal to stop may be a shell around the program: then its children
// have the rest of the grace. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/rank_process.h"

namespace lockstep::internal {

class RankCrew {
 public:
  enum class Phase { running, asked, stopping, killing };

  // `grace`, `stop_grace`: of TreeOptions.
  RankCrew(std::chrono::milliseconds grace, std::chrono::milliseconds stop_grace)
      : grace_(grace), stop_grace_(stop_grace) {}

  std::vector<RankProcess>& ranks() { return ranks_; }
  const std::vector<RankProcess>& ranks() const { return ranks_; }
  Phase phase() const { return phase_; }
  // The first that is suspended, by SIGSTOP or the like, and so keeps all others; -1 if none is.
  int suspended_rank() const;
  // When those that have not ended are to be killed.
  Deadline kill_at() const { return kill_at_; }

  // As RankProcess::try_reap(), but false while the grace lasts for a group that goes on. Then to be called again at
  // look_at().
  bool try_reap(RankProcess& rank, std::span<char> buffer);
  // Never unless a rank is left to its group.
  Deadline look_at() const;

  // No effect if they have been asked for this, or more.
  void ask_to_stop(int signal);
  void stop();
  void kill();
  // Together with this process, until that gets SIGCONT.
  void suspend();

 private:
  bool group_goes_on(const RankProcess& rank);

  const std::chrono::milliseconds grace_;
  const std::chrono::milliseconds stop_grace_;
  std::vector<RankProcess> ranks_;
  Phase phase_ = Phase::running;
  Deadline kill_at_ = Deadline::never();
  OwnEnd why_ = OwnEnd::no;               // what an end that differs is
  TimePoint looked_at_;                   // when groups were looked for
  std::map<int, std::uint64_t> ignored_;  // by those that were there
};

}  // namespace lockstep::internal
