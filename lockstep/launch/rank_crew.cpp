#include "lockstep/launch/rank_crew.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace lockstep::internal {

void RankCrew::ask_to_stop(int signal) {
  if (phase_ != Phase::running) return;
  phase_ = Phase::asked;
  kill_at_ = Deadline::after(stop_grace_);
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running()) continue;
    rank.end().told_to_stop = true;
    rank.signal_alone(signal);
  }
}

void RankCrew::stop() {
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  phase_ = Phase::stopping;
  kill_at_ = std::min(kill_at_, Deadline::after(grace_));
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running()) continue;
    rank.end().told_to_stop = true;
    rank.signal_group(SIGTERM);
  }
}

void RankCrew::kill() {
  phase_ = Phase::killing;
  kill_at_ = Deadline::never();
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running()) continue;
    rank.end().told_to_stop = true;
    rank.end().killed = true;
    rank.signal_group(SIGKILL);
  }
}

// Ctrl-Z reaches only the launcher, since each rank has a process group of its own.
void RankCrew::suspend() {
  for (RankProcess& rank : ranks_) rank.signal_group(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
  for (RankProcess& rank : ranks_) rank.signal_group(SIGCONT);
}

}  // namespace lockstep::internal
