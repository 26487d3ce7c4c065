#include "lockstep/job/launch/rank_crew.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "lockstep/job/launch/process_status.h"

namespace lockstep::internal {
namespace {

constexpr Duration kLookAgain = std::chrono::milliseconds(20);

bool is_suspended(const RankProcess& rank) {
  if (!rank.is_running()) return false;
  const auto status = read_thread_status(rank.end().pid, rank.end().pid);
  return status && is_stopped(status->state);
}

}  // namespace

// A process that ignores the signal does not end by it, so it is not waited for.
bool RankCrew::group_goes_on(const RankProcess& rank) {
  const int signal = rank.ended_by_sent();
  if (signal == 0) return false;
  if (const TimePoint now = steady_clock().now(); now - looked_at_ >= kLookAgain) {
    looked_at_ = now;
    std::set<int> groups;
    for (const RankProcess& each : ranks_) {
      if (each.is_running()) groups.insert(each.end().pid);
    }
    ignored_ = ignored_by_groups(groups);
  }
  const auto group = ignored_.find(rank.end().pid);
  return group != ignored_.end() && (group->second >> (signal - 1) & 1) == 0;
}

bool RankCrew::try_reap(RankProcess& rank, std::span<char> buffer) {
  // At its end kill() comes, which says of those that are left that they were killed.
  const bool in_grace = phase_ == Phase::asked || phase_ == Phase::stopping;
  if (!in_grace || !group_goes_on(rank)) {
    const bool differs = rank.end().told_to_stop && rank.ended_by_sent() == 0;
    if (!rank.try_reap(buffer)) return false;
    if (differs) rank.end().own_end = why_;
    return true;
  }
  if (!rank.is_left_to_group()) rank.leave_to_group();
  return false;
}

int RankCrew::suspended_rank() const {
  const auto found = std::ranges::find_if(ranks_, is_suspended);
  return found == ranks_.end() ? -1 : found->end().rank;
}

Deadline RankCrew::look_at() const {
  const bool any =
      std::ranges::any_of(ranks_, [](const RankProcess& rank) { return rank.is_running() && rank.is_left_to_group(); });
  return any ? Deadline::at(looked_at_ + kLookAgain) : Deadline::never();
}

void RankCrew::ask_to_stop(int signal) {
  if (phase_ != Phase::running) return;
  phase_ = Phase::asked;
  why_ = OwnEnd::after_request;
  kill_at_ = Deadline::after(stop_grace_);
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running()) continue;
    rank.end().told_to_stop = true;
    rank.signal_program(signal);
  }
}

void RankCrew::stop() {
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  phase_ = Phase::stopping;
  why_ = OwnEnd::after_failure;
  kill_at_ = std::min(kill_at_, Deadline::after(grace_));
  for (RankProcess& rank : ranks_) {
    if (!rank.is_running()) continue;
    rank.end().told_to_stop = true;
    rank.end().was_suspended = is_suspended(rank);
    rank.signal_group(SIGTERM);
    rank.signal_group(SIGCONT);  // one that is stopped could not end by it
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
