#include "lockstep/job/launch/hang_decision.h"

#include <algorithm>
#include <cstdint>
#include <set>

namespace lockstep::internal {
namespace {

const GroupPlace* place_in(const RankPlace& place, const std::string& group) {
  const auto found = std::ranges::find(place.groups, group, &GroupPlace::group);
  return found == place.groups.end() ? nullptr : &*found;
}

// The ranks of a group that have not begun the collective in which `waiter` waits.
std::set<int> absent_from(const GroupPlace& waiter, const std::vector<RankPlace>& places, int world_size) {
  std::set<int> absent;
  for (const RankPlace& place : places) {
    const GroupPlace* there = place_in(place, waiter.group);
    const bool is_member = there != nullptr || waiter.size == world_size;
    if (is_member && (there == nullptr || there->sequence() < waiter.sequence())) absent.insert(place.rank);
  }
  return absent;
}

bool is_waiting(const RankPlace& place) { return std::ranges::any_of(place.groups, &GroupPlace::is_inside); }

struct Waits {
  std::set<int> waiting;
  std::set<int> absent;
  std::set<int> together;  // in a collective to which nobody is missing
  const GroupPlace* place = nullptr;
};

Waits find_waits(const std::vector<RankPlace>& places, int world_size) {
  Waits waits;
  for (const RankPlace& place : places) {
    for (const GroupPlace& group : place.groups) {
      if (!group.is_inside()) continue;
      waits.waiting.insert(place.rank);
      const std::set<int> absent = absent_from(group, places, world_size);
      const auto members =
          std::ranges::count_if(places, [&](const RankPlace& each) { return place_in(each, group.group) != nullptr; });
      if (absent.empty() && members < group.size) continue;  // it waits for ranks that are not here
      if (absent.empty()) waits.together.insert(place.rank);
      // The first collective that lacks somebody is the one to tell of.
      if (waits.place == nullptr || (waits.absent.empty() && !absent.empty())) waits.place = &group;
      waits.absent.insert(absent.begin(), absent.end());
    }
  }
  return waits;
}

std::vector<int> list_of(const std::set<int>& ranks) { return {ranks.begin(), ranks.end()}; }

}  // namespace

int Blockage::blamed() const {
  const bool is_somebodys = kind == BlockageKind::absent || (kind == BlockageKind::together && suspects.size() == 1);
  return is_somebodys ? suspects.front() : -1;
}

Blockage find_blockage(const std::vector<RankPlace>& places, int world_size) {
  const Waits waits = find_waits(places, world_size);
  if (waits.place == nullptr) return {};
  Blockage blockage{.group = waits.place->group, .collective = waits.place->text, .waiting = list_of(waits.waiting)};
  std::set<int> suspects;
  for (const RankPlace& place : places) {
    if (waits.absent.contains(place.rank) && !is_waiting(place)) suspects.insert(place.rank);
  }
  if (!suspects.empty()) {
    blockage.kind = BlockageKind::absent;
  } else if (!waits.together.empty()) {
    blockage.kind = BlockageKind::together;
    suspects = waits.together;
  } else {
    blockage.kind = BlockageKind::circle;
    suspects = waits.absent;
  }
  // Who is stopped keeps all others, whatever they do.
  std::set<int> stopped;
  for (const RankPlace& place : places) {
    if (place.is_stopped && suspects.contains(place.rank)) stopped.insert(place.rank);
  }
  blockage.suspects = list_of(stopped.empty() ? suspects : stopped);
  std::erase_if(blockage.waiting, [&](int rank) {
    return blockage.kind != BlockageKind::circle &&
           std::ranges::find(blockage.suspects, rank) != blockage.suspects.end() && !stopped.empty();
  });
  return blockage;
}

Duration hang_interval(Duration tell_after) {
  return std::clamp<Duration>(tell_after / 10, std::chrono::milliseconds(50), std::chrono::seconds(1));
}

HangTimer::HangTimer(const HangOptions& options, TimePoint start)
    : options_(options), last_look_(start), earliest_(start), still_since_(start), progress_at_(start) {
  options_.tell_after = options_.tells_after();
  options_.hard_cap = std::max(options_.hard_cap, options_.end_after.value_or(options_.tell_after));
  next_tell_ = next_note_ = options_.tell_after;
}

HangStep HangTimer::look(TimePoint now, TimePoint last_event, BlockageKind kind, bool progress) {
  if (now - last_look_ > kLongestPause) earliest_ = now;
  last_look_ = now;
  const TimePoint since = std::max(last_event, earliest_);
  if (since > still_since_) {
    still_since_ = since;
    next_tell_ = next_note_ = options_.tell_after;
    told_ = false;
  }
  if (kind == BlockageKind::none) return HangStep::none;
  progress_at_ = progress ? now : std::max(progress_at_, still_since_);
  const Duration still = now - still_since_;
  const bool capped = still >= options_.hard_cap;
  const Duration stuck = capped ? still : now - progress_at_;
  if (told_ && options_.end_after && stuck >= *options_.end_after) return HangStep::end;
  if (stuck >= next_tell_) {
    told_ = true;
    next_tell_ = 2 * stuck;  // and then more rarely
    return HangStep::tell;
  }
  if (progress && still >= next_note_) {
    next_note_ = 2 * still;
    return HangStep::note;
  }
  return HangStep::none;
}

}  // namespace lockstep::internal
