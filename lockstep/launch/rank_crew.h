// A RankCrew is the ranks of a process tree on this machine, all of them: how they are told to end. running -> asked
// (by a signal to each rank's process) -> stopping (SIGTERM to all of its processes) -> killing; steps may be left out.
// Not thread-safe.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/launch/rank_process.h"

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
  // When those that have not ended are to be killed.
  Deadline kill_at() const { return kill_at_; }

  // Nothing if they have been told already, or told more.
  void ask_to_stop(int signal);
  void stop();
  void kill();
  // Together with this process, until that gets SIGCONT.
  void suspend();

 private:
  const std::chrono::milliseconds grace_;
  const std::chrono::milliseconds stop_grace_;
  std::vector<RankProcess> ranks_;
  Phase phase_ = Phase::running;
  Deadline kill_at_ = Deadline::never();
};

}  // namespace lockstep::internal
