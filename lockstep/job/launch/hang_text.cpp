#include "lockstep/job/launch/hang_text.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {
namespace {

double since(const HangSight& sight, std::int64_t ns) {
  return std::max(0.0, seconds(sight.now.time_since_epoch() - Duration(ns)));
}

std::string collective_text(const Blockage& blockage) {
  return fmt::format("{} (group {})", blockage.collective, blockage.group);
}

std::string activity_of(const RankSight& rank) {
  constexpr double kSome = 0.05;  // what threads use that only look around is less, also on a slow machine
  const std::string cpu = rank.cpu >= kSome ? fmt::format(", using {:.0f} % of a core", 100 * rank.cpu) : "";
  switch (rank.state) {
    case 'T': return "stopped (by SIGSTOP or the like; kill -CONT resumes it)";
    case 't': return "stopped by a debugger";
    case 'D': return "waiting for a disk or a device" + cpu;
    case 'Z': return "ended";
    default: return cpu.empty() ? "sleeping" : "running" + cpu;
  }
}

// What it does now, or did last.
std::string place_text(const HangSight& sight, const RankSight& rank) {
  if (!rank.has_recording) return "has joined no group";
  const GroupPlace* last = nullptr;
  std::string text;
  for (const GroupPlace& group : rank.place.groups) {
    if (!group.last) continue;
    if (group.is_inside()) {
      text += fmt::format("{}in {} (group {}) for {:.0f} s", text.empty() ? "" : ", and ", group.text, group.group,
                          since(sight, group.last->started_ns));
    }
    if (last == nullptr || group.last->finished_ns > last->last->finished_ns) last = &group;
  }
  if (text.empty()) text = "in no collective";
  if (rank.place.message) {
    text += fmt::format(", in {} for {:.0f} s", rank.place.message_text, since(sight, rank.place.message->issued_ns));
  }
  const bool is_inside = std::ranges::any_of(rank.place.groups, &GroupPlace::is_inside);
  if (!is_inside && last != nullptr) {
    text += fmt::format(", its last was {} (group {}), {:.0f} s ago", last->text, last->group,
                        since(sight, last->last->finished_ns));
  }
  return text;
}

}  // namespace

std::vector<RankPlace> places_of(const std::vector<RankSight>& ranks) {
  std::vector<RankPlace> places;
  for (const RankSight& rank : ranks) places.push_back(rank.place);
  return places;
}

bool HangSight::is_progress() const {
  return std::ranges::any_of(ranks, [this](const RankSight& rank) {
    return rank.is_progress && std::ranges::find(blockage.suspects, rank.place.rank) != blockage.suspects.end();
  });
}

std::string describe_blockage(const HangSight& sight) {
  const Blockage& blockage = sight.blockage;
  const std::string waiting =
      fmt::format("{} {}", ranks_text(blockage.waiting), blockage.waiting.size() == 1 ? "waits" : "wait");
  switch (blockage.kind) {
    case BlockageKind::none: return "no rank waits";
    case BlockageKind::absent:
      return fmt::format("{} in {} for {}", waiting, collective_text(blockage), ranks_text(blockage.suspects));
    case BlockageKind::circle: return fmt::format("{} for each other, in different collectives", waiting);
    case BlockageKind::together:
      if (blockage.waiting.empty() || blockage.suspects.size() < blockage.waiting.size()) {
        return fmt::format("all ranks are in {}, and {} {} stopped", collective_text(blockage),
                           ranks_text(blockage.suspects), blockage.suspects.size() == 1 ? "is" : "are");
      }
      return fmt::format("{} in {}, which all ranks have entered", waiting, collective_text(blockage));
  }
  return "";
}

std::vector<std::string> hang_lines(const HangSight& sight) {
  std::vector<std::string> lines{fmt::format("the job has made no progress for {:.0f} s: {}",
                                             seconds(sight.now - sight.still_since), describe_blockage(sight))};
  for (const RankSight& rank : sight.ranks) {
    lines.push_back(fmt::format("  rank {} ({}pid {}): {}; {}", rank.place.rank,
                                rank.host.empty() ? "" : fmt::format("host {}, ", rank.host), rank.pid,
                                place_text(sight, rank), activity_of(rank)));
  }
  const std::vector<std::string> stacks = stack_lines(sight.ranks, sight.blockage.suspects);
  lines.insert(lines.end(), stacks.begin(), stacks.end());
  return lines;
}

std::vector<std::string> stack_lines(const std::vector<RankSight>& ranks, const std::vector<int>& first) {
  std::vector<std::pair<std::vector<int>, const std::vector<std::string>*>> groups;
  for (const RankSight& rank : ranks) {
    if (rank.stacks.empty()) continue;
    const auto same = std::ranges::find_if(groups, [&](const auto& each) { return *each.second == rank.stacks; });
    if (same == groups.end()) {
      groups.push_back({{rank.place.rank}, &rank.stacks});
    } else {
      same->first.push_back(rank.place.rank);
    }
  }
  std::ranges::stable_partition(
      groups, [&](const auto& each) { return std::ranges::find(first, each.first.front()) != first.end(); });
  std::vector<std::string> lines;
  for (const auto& [together, stacks] : groups) {
    lines.push_back(fmt::format("stacks of {}:", ranks_text(together)));
    for (const std::string& line : *stacks) lines.push_back("  " + line);
  }
  return lines;
}

std::string verdict_text(const HangSight& sight) {
  return fmt::format("no progress for {:.0f} s: {}", seconds(sight.now - sight.still_since), describe_blockage(sight));
}

std::string straggler_line(const HangSight& sight) {
  std::string state;
  for (const RankSight& rank : sight.ranks) {
    if (std::ranges::find(sight.blockage.suspects, rank.place.rank) == sight.blockage.suspects.end()) continue;
    state += fmt::format("{}rank {} is {}", state.empty() ? "" : ", ", rank.place.rank, activity_of(rank));
  }
  return fmt::format("for {:.0f} s {}; {}", seconds(sight.now - sight.still_since), describe_blockage(sight), state);
}

}  // namespace lockstep::internal
