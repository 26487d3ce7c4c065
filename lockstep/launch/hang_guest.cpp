#include "lockstep/launch/hang_guest.h"

#include <utility>

namespace lockstep::internal {

HangGuest::HangGuest(const HangOptions& options, const FlightRecordings& recordings, int first_rank, RankOutput& output)
    : watch_(options, recordings), output_(output), ranks_(first_rank) {}

Deadline HangGuest::wake_at() const { return ranks_.is_watching() ? watch_.next_look() : Deadline::never(); }

TreeOrder HangGuest::serve(std::span<const pollfd> /*ready*/) {
  if (!ranks_.is_watching()) return {};
  HangReport report = watch_.look(ranks_.all());
  for (const std::string& line : report.lines) output_.say(line);
  if (!report.verdict) return {};
  verdict_ = std::move(*report.verdict);
  ranks_.stop();
  return {.kind = TreeOrder::Kind::end};
}

bool HangGuest::on_signal(int /*signal*/) {
  ranks_.stop();
  return false;
}

}  // namespace lockstep::internal
