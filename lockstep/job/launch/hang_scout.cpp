#include "lockstep/job/launch/hang_scout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/job/launch/symbols.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostRanksWithStacks = 64;  // those that others wait for first
constexpr Duration kForStacks = std::chrono::seconds(1);
constexpr Duration kForNames = std::chrono::seconds(3);
constexpr Duration kBetweenLooksAtStacks = std::chrono::milliseconds(20);

// Where a rank is, and when something in its recording last changed.
struct Position {
  RankPlace place;
  std::int64_t last_event_ns = 0;
};

void take_record(const FlightRecord& record, std::map<std::uint32_t, GroupPlace>& groups, Position& position) {
  position.last_event_ns = std::max({position.last_event_ns, record.issued_ns, record.started_ns, record.finished_ns});
  if (record.category == FlightCategory::message) {
    const bool is_open = record.state == FlightState::issued || record.state == FlightState::running;
    const auto& known = position.place.message;
    if (is_open && (!known || known->number < record.number)) position.place.message = record;
    return;
  }
  const auto group = groups.find(record.group);
  if (group == groups.end() || record.state == FlightState::issued) return;
  std::optional<FlightRecord>& last = group->second.last;
  if (!last || last->number < record.number) last = record;
}

FlightNames names_in(const FlightMemory& memory) {
  FlightNames names;
  for (std::size_t i = 0; i < flight::kNames; ++i) {
    FlightName name;
    if (read_slot(memory.name(i), name) == flight::SlotState::whole && is_sound(name)) names.add(name);
  }
  return names;
}

Position position_of(int rank, const FlightMemory& memory) {
  Position position;
  position.place.rank = rank;
  std::map<std::string, FlightGroup> newest;            // of the groups with one name
  for (std::size_t i = 1; i <= flight::kGroups; ++i) {  // in each slot
    FlightGroup group;
    if (read_slot(memory.group(i), group) != flight::SlotState::whole || !is_sound(group)) continue;
    FlightGroup& known = newest[group.name];
    if (known.number < group.number) known = group;
  }
  std::map<std::uint32_t, GroupPlace> groups;
  for (const auto& [name, group] : newest) groups[group.number] = {.group = name, .size = group.size};
  for (std::size_t i = 0; i < flight::kSlots; ++i) {
    FlightRecord record;
    if (read_slot(memory.slot(i), record) == flight::SlotState::whole && is_sound(record)) {
      take_record(record, groups, position);
    }
  }
  const FlightNames names = names_in(memory);
  for (auto& [number, place] : groups) {
    if (place.last) place.text = describe(*place.last, names);
    position.place.groups.push_back(std::move(place));
  }
  if (position.place.message) position.place.message_text = describe(*position.place.message, names);
  return position;
}

}  // namespace

HangScout::HangScout(Duration tell_after, const FlightRecordings& recordings, const Clock& clock)
    : recordings_(recordings),
      clock_(clock),
      interval_(hang_interval(tell_after)),
      quiet_(std::min<Duration>(tell_after / 6, std::chrono::seconds(10))),
      window_(std::clamp<Duration>(tell_after / 3, 4 * interval_, std::chrono::seconds(10))),
      last_event_(clock.now()) {}

Duration HangScout::interval() const { return awaits_stacks() ? kBetweenLooksAtStacks : interval_; }

// Whether an operation has begun or a rank has ended since the last look.
bool HangScout::has_moved(const std::vector<WatchedRank>& ranks) {
  std::uint64_t sum = 0;
  pids_.clear();
  for (const WatchedRank& rank : ranks) {
    const FlightMemory* memory = recordings_.memory(rank.rank);
    if (memory == nullptr || !rank.is_alive) continue;
    pids_[rank.rank] = rank.pid;
    world_size_ = memory->header().world_size;
    sum += 1 + memory->header().operations.load(std::memory_order_relaxed);
  }
  return std::exchange(counters_, sum) != sum;
}

bool HangScout::look(const std::vector<WatchedRank>& ranks) {
  const TimePoint now = clock_.now();
  sights_.clear();
  if (has_moved(ranks)) {
    last_event_ = now;
    activities_.clear();
  }
  if (now - last_event_ < quiet_) return false;
  for (const auto& [rank, pid] : pids_) {
    const FlightMemory& memory = *recordings_.memory(rank);
    Position position = position_of(rank, memory);
    last_event_ = std::max(last_event_, std::min(now, TimePoint(Duration(position.last_event_ns))));
    RankSight& sight = sights_.emplace_back(RankSight{.place = std::move(position.place), .pid = pid});
    sight.has_recording = memory.is_signed();
  }
  return true;
}

void HangScout::measure() {
  const TimePoint now = clock_.now();
  TcpBytes tcp = TcpBytes::read();
  const auto recorded = [this](const RankSight& sight) {
    return recordings_.memory(sight.place.rank)->header().pid.load();
  };
  for (const RankSight& sight : sights_) tcp.leave_out(recorded(sight));
  for (RankSight& sight : sights_) {
    const int rank = sight.place.rank;
    const auto seen = read_activity(sight.pid, recorded(sight), tcp);
    if (!seen) continue;
    ActivityWindow& activity = activities_[rank];
    activity.add(now, *seen, window_);
    sight.place.is_stopped = is_stopped(seen->state);
    sight.state = activity.state();
    sight.cpu = activity.cpu();
    sight.is_progress = activity.is_progress();
  }
}

void HangScout::ask_for_stacks(const std::vector<int>& first) {
  const auto ask = [this](int rank) {
    if (requests_.size() < kMostRanksWithStacks) requests_.try_emplace(rank, *recordings_.memory(rank));
  };
  for (const int rank : first) {
    if (pids_.contains(rank)) ask(rank);
  }
  for (const auto& [rank, pid] : pids_) ask(rank);
  stacks_until_ = Deadline::after(kForStacks, clock_);
}

bool HangScout::has_stacks() const {
  const bool complete = std::ranges::all_of(requests_, [](const auto& each) { return each.second.complete(); });
  return awaits_stacks() && (complete || stacks_until_.expired(clock_.now()));
}

void HangScout::take_stacks(std::vector<RankSight>& ranks) {
  Symbols symbols(Deadline::after(kForNames));
  for (RankSight& rank : ranks) {
    const auto asked = requests_.find(rank.place.rank);
    if (asked == requests_.end()) continue;
    const StackRequest& request = asked->second;
    rank.stacks = request.remark().empty() ? describe_stacks(request.take(), symbols)
                                           : std::vector<std::string>{"none: " + request.remark()};
  }
  requests_.clear();
  activities_.clear();  // recording stacks is no progress
}

}  // namespace lockstep::internal
