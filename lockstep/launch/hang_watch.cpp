#include "lockstep/launch/hang_watch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/launch/hang_text.h"
#include "lockstep/launch/process_status.h"
#include "lockstep/launch/stack_reader.h"
#include "lockstep/launch/symbols.h"

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

Position position_of(int rank, const FlightMemory& memory) {
  Position position;
  position.place.rank = rank;
  std::map<std::string, FlightGroup> newest;  // of the groups with one name
  for (std::size_t i = 0; i < flight::kGroups; ++i) {
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
  for (auto& [number, place] : groups) position.place.groups.push_back(std::move(place));
  return position;
}

FlightNames names_in(const FlightMemory& memory) {
  FlightNames names;
  for (std::size_t i = 0; i < flight::kNames; ++i) {
    FlightName name;
    if (read_slot(memory.name(i), name) == flight::SlotState::whole && is_sound(name)) names.add(name);
  }
  return names;
}

}  // namespace

class HangWatch::Looker {
 public:
  Looker(const HangOptions& options, const FlightRecordings& recordings, const Clock& clock)
      : recordings_(recordings),
        clock_(clock),
        interval_(
            std::clamp<Duration>(options.tell_after / 10, std::chrono::milliseconds(50), std::chrono::seconds(1))),
        quiet_(std::min<Duration>(options.tell_after / 6, std::chrono::seconds(10))),
        window_(std::clamp<Duration>(options.tell_after / 3, 4 * interval_, std::chrono::seconds(10))),
        timer_(options, clock.now()),
        last_event_(clock.now()) {}

  HangReport look(const std::vector<WatchedRank>& ranks);
  Duration until_next() const { return requests_.empty() ? interval_ : kBetweenLooksAtStacks; }

 private:
  bool has_moved(const std::vector<WatchedRank>& ranks);
  Blockage see(const std::vector<WatchedRank>& ranks, TimePoint now);
  bool is_progress(const Blockage& blockage) const;
  HangSight sight(const Blockage& blockage, TimePoint now) const;
  void ask(int rank) {
    if (requests_.size() < kMostRanksWithStacks) requests_.try_emplace(rank, *recordings_.memory(rank));
  }
  void ask_for_stacks();
  std::vector<std::string> tell();

  const FlightRecordings& recordings_;
  const Clock& clock_;
  const Duration interval_;
  const Duration quiet_;   // before which recordings are not read
  const Duration window_;  // in which progress is measured
  HangTimer timer_;
  TimePoint last_event_;
  std::uint64_t counters_ = 0;
  int world_size_ = 0;
  std::map<int, int> pids_;  // of living ranks
  std::map<int, ActivityWindow> activities_;
  std::vector<RankPlace> places_;
  std::optional<HangSight> told_;  // while stacks come in
  std::map<int, StackRequest> requests_;
  Deadline stacks_until_ = Deadline::never();
};

// Whether an operation has begun or a rank has ended since the last look.
bool HangWatch::Looker::has_moved(const std::vector<WatchedRank>& ranks) {
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

Blockage HangWatch::Looker::see(const std::vector<WatchedRank>& ranks, TimePoint now) {
  if (has_moved(ranks)) {
    last_event_ = now;
    activities_.clear();
  }
  if (now - last_event_ < quiet_) return {};
  places_.clear();
  for (const auto& [rank, pid] : pids_) {
    Position position = position_of(rank, *recordings_.memory(rank));
    last_event_ = std::max(last_event_, std::min(now, TimePoint(Duration(position.last_event_ns))));
    places_.push_back(std::move(position.place));
  }
  Blockage blockage = find_blockage(places_, world_size_);
  if (blockage.kind == BlockageKind::none) {
    activities_.clear();
    return blockage;
  }
  for (RankPlace& place : places_) {
    const auto seen = read_activity(pids_[place.rank], recordings_.memory(place.rank)->header().pid.load());
    if (!seen) continue;
    activities_[place.rank].add(now, *seen, window_);
    place.is_stopped = seen->state == 'T' || seen->state == 't';
  }
  return find_blockage(places_, world_size_);
}

bool HangWatch::Looker::is_progress(const Blockage& blockage) const {
  return std::ranges::any_of(blockage.suspects, [this](int rank) {
    const auto activity = activities_.find(rank);
    return activity != activities_.end() && activity->second.is_progress();
  });
}

HangSight HangWatch::Looker::sight(const Blockage& blockage, TimePoint now) const {
  HangSight sight{.blockage = blockage, .ranks = {}, .names = {}, .now = now, .still_since = timer_.still_since()};
  for (const RankPlace& place : places_) {
    const FlightMemory& memory = *recordings_.memory(place.rank);
    RankSight& rank = sight.ranks.emplace_back(RankSight{.place = place, .pid = pids_.at(place.rank)});
    rank.has_recording = memory.is_signed();
    const auto activity = activities_.find(place.rank);
    if (activity != activities_.end()) {
      rank.state = activity->second.state();
      rank.cpu = activity->second.cpu();
    }
    sight.names.add(names_in(memory));
  }
  return sight;
}

void HangWatch::Looker::ask_for_stacks() {
  for (const int rank : told_->blockage.suspects) ask(rank);
  for (const RankPlace& place : places_) ask(place.rank);
  stacks_until_ = Deadline::after(kForStacks, clock_);
}

std::vector<std::string> HangWatch::Looker::tell() {
  Symbols symbols(Deadline::after(kForNames));
  for (RankSight& rank : told_->ranks) {
    const auto asked = requests_.find(rank.place.rank);
    if (asked == requests_.end()) continue;
    const StackRequest& request = asked->second;
    rank.stacks = request.remark().empty() ? describe_stacks(request.take(), symbols)
                                           : std::vector<std::string>{"none: " + request.remark()};
  }
  std::vector<std::string> lines = hang_lines(*told_);
  requests_.clear();
  told_.reset();
  return lines;
}

HangReport HangWatch::Looker::look(const std::vector<WatchedRank>& ranks) {
  HangReport report;
  const TimePoint now = clock_.now();
  if (!requests_.empty()) {
    const bool complete = std::ranges::all_of(requests_, [](const auto& each) { return each.second.complete(); });
    if (!complete && !stacks_until_.expired(now)) return report;
    report.lines = tell();
    activities_.clear();  // recording stacks is no progress
    timer_.looked(clock_.now());
    return report;
  }
  const Blockage blockage = see(ranks, now);
  const bool progress = is_progress(blockage);
  switch (timer_.look(now, last_event_, blockage.kind, progress)) {
    case HangStep::none: break;
    case HangStep::note: report.lines.push_back(straggler_line(sight(blockage, now))); break;
    case HangStep::tell:
      told_ = sight(blockage, now);
      ask_for_stacks();
      break;
    case HangStep::end:
      report.verdict = HangVerdict{fmt::format("nothing moved for {:.0f} s: {}", seconds(now - timer_.still_since()),
                                               describe_blockage(sight(blockage, now))),
                                   blockage.blamed()};
      break;
  }
  return report;
}

HangOptions hang_options(std::optional<Duration> end_after) {
  HangOptions options{.end_after = end_after};
  const EnvironmentReader reader;
  if (const auto tell = reader.number("LOCKSTEP_HANG_SECONDS")) options.tell_after = std::chrono::seconds(*tell);
  if (const auto cap = reader.number("LOCKSTEP_HANG_CAP_SECONDS")) options.hard_cap = std::chrono::seconds(*cap);
  return options;
}

HangWatch::HangWatch(const HangOptions& options, const FlightRecordings& recordings, const Clock& clock)
    : looker_(std::make_unique<Looker>(options, recordings, clock)), next_look_(Deadline::at(clock.now())) {}

HangWatch::~HangWatch() = default;

HangReport HangWatch::look(const std::vector<WatchedRank>& ranks) {
  if (!next_look_.expired()) return {};
  HangReport report = looker_->look(ranks);
  next_look_ = Deadline::after(looker_->until_next());
  return report;
}

}  // namespace lockstep::internal
