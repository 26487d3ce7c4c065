#include "lockstep/launch/hang_guest.h"

#include <algorithm>

namespace lockstep::internal {

HangGuest::HangGuest(const HangOptions& options, const FlightRecordings& recordings, int first_rank, RankOutput& output)
    : watch_(options, recordings), first_rank_(first_rank), output_(output) {}

void HangGuest::on_start(const std::vector<int>& pids) {
  for (const int pid : pids) {
    ranks_.push_back({.rank = first_rank_ + static_cast<int>(ranks_.size()), .pid = pid, .is_alive = true});
  }
}

Deadline HangGuest::wake_at() const { return is_watching_ ? watch_.next_look() : Deadline::never(); }

TreeOrder HangGuest::serve(std::span<const pollfd> /*ready*/) {
  if (!is_watching_ || ranks_.empty()) return {};
  HangReport report = watch_.look(ranks_);
  for (const std::string& line : report.lines) output_.say(line);
  if (!report.verdict) return {};
  verdict_ = std::move(*report.verdict);
  is_watching_ = false;
  return {.kind = TreeOrder::Kind::end};
}

// Ranks that are told to stop have a time limit of their own.
bool HangGuest::on_signal(int /*signal*/) {
  is_watching_ = false;
  return false;
}

// What follows a failure is not a hang.
void HangGuest::on_end(const RankEnd& end) {
  if (!end.failure.text.empty()) is_watching_ = false;
  for (WatchedRank& rank : ranks_) rank.is_alive = rank.is_alive && rank.rank != end.rank;
  is_watching_ = is_watching_ && std::ranges::any_of(ranks_, &WatchedRank::is_alive);
}

}  // namespace lockstep::internal
