#include "lockstep/job/launch/rank_census.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lockstep/base/observe/flight_layout.h"

namespace lockstep::internal {
namespace {

constexpr Duration kBetweenLooks = std::chrono::seconds(1);
constexpr std::uint64_t kMostLookedAt = 64;  // operations of a rank

using Collective = std::pair<std::string, std::uint64_t>;  // the group's name and the number in it

std::map<Collective, std::int64_t> begun_in(const FlightMemory& memory) {
  std::map<Collective, std::int64_t> begun;
  const std::uint64_t newest = memory.header().operations.load(std::memory_order_acquire);
  for (std::uint64_t number = newest; number > newest - std::min(newest, kMostLookedAt); --number) {
    FlightRecord record;
    FlightGroup group;
    if (read_slot(memory.slot(number), record) != flight::SlotState::whole || !is_sound(record)) continue;
    if (record.category != FlightCategory::collective || record.sequence == 0 || record.started_ns == 0) continue;
    if (read_slot(memory.group(record.group), group) != flight::SlotState::whole || !is_sound(group)) continue;
    if (group.number == record.group) begun.emplace(Collective(group.name, record.sequence), record.started_ns);
  }
  return begun;
}

}  // namespace

std::vector<std::int64_t> mean_lateness_ns(const std::vector<const FlightMemory*>& memories) {
  std::vector<std::map<Collective, std::int64_t>> begun;
  for (const FlightMemory* memory : memories) begun.push_back(begun_in(*memory));
  if (begun.size() < 2) return {};
  std::vector<std::int64_t> late(begun.size(), 0);
  std::int64_t count = 0;
  for (const auto& [collective, unused] : begun.front()) {
    std::vector<std::int64_t> times;
    for (const auto& of_rank : begun) {
      if (const auto found = of_rank.find(collective); found != of_rank.end()) times.push_back(found->second);
    }
    if (times.size() != begun.size()) continue;  // of a part of the ranks, or not all have come yet
    const std::int64_t first = *std::ranges::min_element(times);
    for (std::size_t i = 0; i < times.size(); ++i) late[i] += times[i] - first;
    ++count;
  }
  if (count == 0) return {};
  for (std::int64_t& sum : late) sum /= count;
  return late;
}

RankCensus::RankCensus(const FlightRecordings& recordings, int first_rank, Report report)
    : recordings_(recordings),
      first_rank_(first_rank),
      report_(std::move(report)),
      next_look_(Deadline::after(kBetweenLooks)) {}

void RankCensus::on_start(const std::vector<int>& pids) {
  for (std::size_t i = 0; i < pids.size(); ++i) ranks_.push_back({.rank = first_rank_ + static_cast<int>(i)});
  next_look_ = Deadline::after({});
}

void RankCensus::on_end(const RankEnd& end) {
  const auto rank = std::ranges::find(ranks_, end.rank, &RankStatus::rank);
  if (rank == ranks_.end()) return;
  rank->state = end.status.ok() && end.failure.text.empty() ? RankState::succeeded : RankState::failed;
  next_look_ = Deadline::after({});
}

TreeOrder RankCensus::serve(std::span<const pollfd> /*ready*/) {
  if (!ranks_.empty() && next_look_.expired()) look();
  return {};
}

void RankCensus::look() {
  next_look_ = Deadline::after(kBetweenLooks);
  std::vector<const FlightMemory*> memories;
  for (RankStatus& rank : ranks_) {
    const FlightMemory* memory = recordings_.memory(rank.rank);
    if (memory == nullptr) continue;
    memories.push_back(memory);
    if (rank.state == RankState::starting && memory->is_signed()) rank.state = RankState::running;
    rank.numbers = memory->header().live.read();
    rank.numbers.operations = memory->header().operations.load(std::memory_order_relaxed);
  }
  const std::vector<std::int64_t> late = mean_lateness_ns(memories);
  for (std::size_t i = 0; i < late.size(); ++i) ranks_[i].lateness_ns = late[i];
  if (!ranks_.empty()) report_(ranks_);
}

}  // namespace lockstep::internal
