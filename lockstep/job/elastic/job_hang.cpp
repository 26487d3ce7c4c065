#include "lockstep/job/elastic/job_hang.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lockstep::internal {
namespace {

// A host says what it sees at least each second while nothing moves. Silent for longer, it is not known to be still.
constexpr Duration kFresh = std::chrono::seconds(4);
constexpr Duration kShortestHang = std::chrono::milliseconds(1);
constexpr Duration kLongestHang = std::chrono::hours(24);

// To the clock of this host.
void shift(FlightRecord& record, std::int64_t by_ns) {
  for (std::int64_t* time : {&record.issued_ns, &record.started_ns, &record.finished_ns}) {
    if (*time != 0) *time += by_ns;
  }
}

}  // namespace

JobHang::JobHang(const HangOptions& options, int generation, int world_size, TimePoint now)
    : generation_(generation),
      world_size_(world_size),
      tell_after_(options.tells_after()),
      interval_(hang_interval(tell_after_)),
      timer_(options, now),
      next_look_(now + interval_) {}

int JobHang::tell_after_ms() const {
  return static_cast<int>(std::clamp<Duration>(tell_after_, kShortestHang, kLongestHang) / kShortestHang);
}

void JobHang::hear(const HostEntry& host, const AgentMessage& message, TimePoint now) {
  if (const auto* rank = std::get_if<RankStands>(&message)) {
    if (rank->generation == generation_) hear(hosts_[host.number], host.name, *rank, now);
  } else if (const auto* all = std::get_if<HostStands>(&message); all != nullptr && all->generation == generation_) {
    Host& from = hosts_[host.number];
    from.ranks = std::exchange(from.coming, {});
    from.is_still = all->is_still;
    // By this host's clock. Reports are delayed by different times, so the earliest is the best estimate.
    const TimePoint event = now - std::chrono::nanoseconds(all->now_ns - all->last_event_ns);
    const bool is_another = std::exchange(from.last_event_ns, all->last_event_ns) != all->last_event_ns;
    from.last_event = is_another ? event : std::min(from.last_event, event);
    from.heard_at = now;
  }
}

void JobHang::hear(Host& host, const std::string& name, const RankStands& stands, TimePoint now) const {
  if (stands.sight.place.rank >= world_size_ || host.coming.size() >= std::size_t{kMostRanksOfHost}) return;
  RankSight sight = stands.sight;
  sight.host = name;
  const std::int64_t by_ns = now.time_since_epoch().count() - stands.now_ns;
  for (GroupPlace& group : sight.place.groups) {
    if (group.last) shift(*group.last, by_ns);
  }
  if (sight.place.message) shift(*sight.place.message, by_ns);
  host.coming.push_back(std::move(sight));
}

// Nothing moves only if that is so on all hosts.
HangSight JobHang::see(const std::vector<int>& hosts, TimePoint now, TimePoint& last_event) const {
  HangSight sight{.now = now};
  last_event = {};
  bool is_still = true;
  for (const int number : hosts) {
    const auto host = hosts_.find(number);
    if (host == hosts_.end() || (host->second.is_still && now - host->second.heard_at > kFresh)) {
      last_event = {};
      return {.now = now};
    }
    last_event = std::max(last_event, host->second.last_event);
    is_still = is_still && host->second.is_still;
    sight.ranks.insert(sight.ranks.end(), host->second.ranks.begin(), host->second.ranks.end());
  }
  if (!is_still) return {.now = now};
  std::ranges::sort(sight.ranks, {}, [](const RankSight& rank) { return rank.place.rank; });
  sight.blockage = find_blockage(places_of(sight.ranks), world_size_);
  return sight;
}

JobHang::Result JobHang::look(const std::vector<int>& hosts, TimePoint now) {
  Result result;
  if (now < next_look_) return result;
  next_look_ = now + interval_;
  TimePoint last_event;
  HangSight sight = see(hosts, now, last_event);
  const HangStep step = timer_.look(now, last_event, sight.blockage.kind, sight.is_progress());
  sight.still_since = timer_.still_since();
  switch (step) {
    case HangStep::none: break;
    case HangStep::note: result.lines.push_back(straggler_line(sight)); break;
    case HangStep::tell:
      result.lines = hang_lines(sight);
      result.stacks_first_of = sight.blockage.suspects;
      result.why = verdict_text(sight);
      break;
    case HangStep::end:
      result.blamed = sight.blockage.blamed();
      result.verdict = verdict_text(sight);
      break;
  }
  return result;
}

}  // namespace lockstep::internal
