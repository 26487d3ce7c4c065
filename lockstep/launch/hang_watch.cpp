#include "lockstep/launch/hang_watch.h"

#include <utility>

#include "lockstep/base/environment.h"

namespace lockstep::internal {

HangOptions hang_options(std::optional<Duration> end_after) {
  HangOptions options{.end_after = end_after};
  const EnvironmentReader reader;
  if (const auto tell = reader.number("LOCKSTEP_HANG_SECONDS")) options.tell_after = std::chrono::seconds(*tell);
  if (const auto cap = reader.number("LOCKSTEP_HANG_CAP_SECONDS")) options.hard_cap = std::chrono::seconds(*cap);
  return options;
}

HangWatch::HangWatch(const HangOptions& options, const FlightRecordings& recordings, const Clock& clock)
    : clock_(clock),
      scout_(options.tells_after(), recordings, clock),
      timer_(options, clock.now()),
      next_look_(Deadline::at(clock.now())) {}

HangReport HangWatch::look(const std::vector<WatchedRank>& ranks) {
  if (!next_look_.expired()) return {};
  HangReport report = scout_.awaits_stacks() ? look_at_stacks() : look_at_ranks(ranks);
  next_look_ = Deadline::after(scout_.interval());
  return report;
}

HangSight HangWatch::see(const std::vector<WatchedRank>& ranks) {
  HangSight sight{.now = clock_.now()};
  if (!scout_.look(ranks)) return sight;
  sight.blockage = find_blockage(places_of(scout_.sights()), scout_.world_size());
  if (sight.blockage.kind == BlockageKind::none) {
    scout_.forget();
    return sight;
  }
  scout_.measure();
  sight.ranks = scout_.sights();
  sight.blockage = find_blockage(places_of(sight.ranks), scout_.world_size());  // who is stopped is known now
  return sight;
}

HangReport HangWatch::look_at_ranks(const std::vector<WatchedRank>& ranks) {
  HangReport report;
  HangSight sight = see(ranks);
  const HangStep step = timer_.look(sight.now, scout_.last_event(), sight.blockage.kind, sight.is_progress());
  sight.still_since = timer_.still_since();
  if (!timer_.has_told()) hang_.clear();
  switch (step) {
    case HangStep::none: break;
    case HangStep::note: report.lines.push_back(straggler_line(sight)); break;
    case HangStep::tell:
      scout_.ask_for_stacks(sight.blockage.suspects);
      hang_ = verdict_text(sight);
      told_ = std::move(sight);
      break;
    case HangStep::end: report.verdict = HangVerdict{verdict_text(sight), sight.blockage.blamed()}; break;
  }
  return report;
}

HangReport HangWatch::look_at_stacks() {
  if (!scout_.has_stacks()) return {};
  scout_.take_stacks(told_.ranks);
  timer_.looked(clock_.now());
  return {.lines = hang_lines(std::exchange(told_, {}))};
}

}  // namespace lockstep::internal
