#include "lockstep/base/observe/common_clock.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::internal {
namespace {

// Collectives that no rank leaves before all have entered.
bool meets_all(const FlightRecord& record) {
  constexpr std::array<std::string_view, 5> kMeeting = {"barrier", "all_reduce", "all_gather", "reduce_scatter",
                                                        "all_to_all"};
  const bool is_over = record.state == FlightState::done && record.started_ns != 0;
  return record.category == FlightCategory::collective && record.sequence != 0 && is_over &&
         std::ranges::find(kMeeting, std::string_view(record.operation)) != kMeeting.end();
}

// When the ranks of one host came to a collective and left it.
struct Visit {
  std::int64_t last_start = std::numeric_limits<std::int64_t>::min();
  std::int64_t first_end = std::numeric_limits<std::int64_t>::max();
};
using Visits = std::map<std::pair<std::string, std::uint64_t>, Visit>;  // by group and sequence

std::int64_t sane(std::int64_t offset) { return std::clamp(offset, -kLargestOffset, kLargestOffset); }

struct Host {
  std::int64_t offset = 0;  // from its monotonic clock to its wall clock
  Visits visits;            // on its wall clock
};

void add_visits(const FlightSnapshot& snapshot, Host& host) {
  std::map<std::uint32_t, std::string> groups;
  for (const FlightGroup& group : snapshot.groups) groups[group.number] = group.name;
  for (const FlightRecord& record : snapshot.records) {
    const auto group = groups.find(record.group);
    if (group == groups.end() || !meets_all(record)) continue;
    Visit& visit = host.visits[{group->second, record.sequence}];
    visit.last_start = std::max(visit.last_start, std::min(record.started_ns, kLatestMonotonic) + host.offset);
    visit.first_end = std::min(visit.first_end, std::min(record.finished_ns, kLatestMonotonic) + host.offset);
  }
}

// What to add to a host's wall clock: the least change after which nobody leaves before all have entered.
std::int64_t correction_of(const Host& host, const Host& reference) {
  std::int64_t least = -kLargestOffset, most = kLargestOffset;
  for (const auto& [key, theirs] : host.visits) {
    const auto found = reference.visits.find(key);
    if (found == reference.visits.end()) continue;
    least = std::max(least, found->second.last_start - theirs.first_end);
    most = std::min(most, found->second.first_end - theirs.last_start);
  }
  if (least > most) return std::midpoint(least, most);  // the clocks have drifted meanwhile
  return std::clamp<std::int64_t>(0, least, most);
}

}  // namespace

std::vector<std::int64_t> common_clock(const std::vector<FlightSnapshot>& snapshots) {
  std::map<std::string, Host> hosts;
  const Host* reference = nullptr;
  for (const FlightSnapshot& snapshot : snapshots) {
    const auto [host, is_new] = hosts.try_emplace(snapshot.host);
    if (is_new) host->second.offset = sane(snapshot.wall_ns - snapshot.monotonic_ns);
    if (reference == nullptr && snapshot.pid != 0) reference = &host->second;
    add_visits(snapshot, host->second);
  }
  for (auto& [name, host] : hosts) {
    if (reference != nullptr && &host != reference) host.offset = sane(host.offset + correction_of(host, *reference));
  }
  std::vector<std::int64_t> offsets;
  for (const FlightSnapshot& snapshot : snapshots) offsets.push_back(hosts[snapshot.host].offset);
  return offsets;
}

}  // namespace lockstep::internal
