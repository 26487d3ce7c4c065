#include "lockstep/base/observe/flight_report.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/common_clock.h"

namespace lockstep::internal {
namespace {

std::string error_name(const FlightRecord& record) {
  return std::string(record.error == 0 ? "" : to_string(static_cast<ErrorKind>(record.error - 1)));
}

// What a rank does, and how far it is: ranks of a group that differ in this text are not at the same place.
std::string position(const FlightStatus& status, const FlightNames& names) {
  if (!status.last) return "in no recorded collective";
  const FlightRecord& last = *status.last;
  std::string text = "at " + describe(last, names);
  if (last.state == FlightState::running) return text + ", inside";
  if (last.state == FlightState::done) return text + ", which it finished";
  text += fmt::format(", which failed ({})", error_name(last));
  if (last.error_peer >= 0) text += fmt::format(", because of rank {} of the group", last.error_peer);
  return text;
}

FlightStatus status_in(const FlightSnapshot& snapshot, std::uint32_t group) {
  FlightStatus status;
  status.rank = snapshot.rank;
  for (const FlightRecord& record : snapshot.records) {
    if (record.group != group || record.category != FlightCategory::collective) continue;
    if (record.state == FlightState::issued) {
      ++status.queued;
    } else {
      status.last = record;
    }
  }
  return status;
}

// A rank of a group.
struct Member {
  const FlightSnapshot* snapshot;
  std::uint32_t group;  // its number in the snapshot
  std::int64_t offset;  // to the common clock
};
using Members = std::vector<Member>;

struct Begun {
  const Member* member;
  const FlightRecord* record;

  int rank() const { return member->snapshot->rank; }
  std::int64_t at() const { return std::min(record->started_ns, kLatestMonotonic) + member->offset; }
};

// The collectives of a group that have begun, by sequence.
std::map<std::uint64_t, std::vector<Begun>> collectives_of(const Members& members) {
  std::map<std::uint64_t, std::vector<Begun>> by_sequence;
  for (const Member& member : members) {
    for (const FlightRecord& record : member.snapshot->records) {
      const bool counts = record.group == member.group && record.category == FlightCategory::collective;
      if (counts && record.sequence != 0) by_sequence[record.sequence].push_back({&member, &record});
    }
  }
  return by_sequence;
}

std::vector<std::pair<int, FlightRecord>> first_mismatch(const Members& members, const FlightNames& names) {
  for (const auto& [sequence, ranks] : collectives_of(members)) {
    const std::string first = describe(*ranks.front().record, names);
    if (std::ranges::all_of(ranks, [&](const Begun& each) { return describe(*each.record, names) == first; })) continue;
    std::vector<std::pair<int, FlightRecord>> mismatch;
    for (const Begun& each : ranks) mismatch.emplace_back(each.rank(), *each.record);
    return mismatch;
  }
  return {};
}

std::vector<FlightArrival> arrivals_of(const Members& members, int size) {
  std::vector<FlightArrival> arrivals;
  for (const auto& [sequence, ranks] : collectives_of(members)) {
    const bool all_began = std::ranges::all_of(ranks, [](const Begun& each) { return each.record->started_ns != 0; });
    if (size < 2 || std::cmp_not_equal(ranks.size(), size) || !all_began) continue;
    const auto [first, last] = std::ranges::minmax(ranks, {}, &Begun::at);
    arrivals.push_back({*last.record, first.rank(), last.rank(), last.at() - first.at()});
  }
  return arrivals;
}

std::string list(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string wall_time(const FlightSnapshot& snapshot, std::int64_t ns) {
  const std::int64_t wall = snapshot.wall_ns + ns - snapshot.monotonic_ns;
  const auto second = static_cast<std::time_t>(wall / 1'000'000'000);
  std::tm fields{};
  ::localtime_r(&second, &fields);
  char text[32];
  std::strftime(text, sizeof text, "%H:%M:%S", &fields);
  return fmt::format("{}.{:06}", text, wall / 1000 % 1'000'000);
}

void add_group_lines(const GroupReport& group, const FlightNames& names, std::vector<std::string>& lines) {
  lines.push_back(fmt::format("group {} of {} rank{}: {}", group.name, group.size, group.size == 1 ? "" : "s",
                              group.differ ? "its ranks are not at the same place" : "all are at the same place"));
  if (!group.mismatch.empty()) {
    lines.push_back("  the first collective that they called differently:");
    std::map<std::string, std::vector<int>> by_call;
    for (const auto& [rank, record] : group.mismatch) by_call[describe(record, names)].push_back(rank);
    for (const auto& [call, ranks] : by_call) lines.push_back(fmt::format("    {}: {}", list(ranks), call));
  }
  std::vector<std::pair<std::string, std::vector<int>>> places;
  std::size_t queued = 0;
  for (const FlightStatus& status : group.statuses) {
    const std::string place = position(status, names);
    const auto same = std::ranges::find(places, place, &decltype(places)::value_type::first);
    if (same == places.end()) {
      places.push_back({place, {status.rank}});
    } else {
      same->second.push_back(status.rank);
    }
    queued = std::max(queued, status.queued);
  }
  // Places with few ranks first: they are what the reader looks for.
  std::ranges::stable_sort(places, {}, [](const auto& place) { return place.second.size(); });
  for (const auto& [place, ranks] : places) {
    lines.push_back(fmt::format("  {} {} {}", list(ranks), ranks.size() == 1 ? "is" : "are", place));
  }
  if (queued != 0) lines.push_back(fmt::format("  up to {} more were queued", queued));
}

void add_arrival_lines(const std::vector<FlightArrival>& arrivals, const FlightNames& names,
                       std::size_t last_operations, std::vector<std::string>& lines) {
  const std::size_t count = std::min(last_operations, arrivals.size());
  if (count == 0) return;
  lines.push_back(fmt::format(
      "  the last {} that all ranks entered, and how much later the last rank entered than the first:", count));
  for (std::size_t i = arrivals.size() - count; i < arrivals.size(); ++i) {
    const FlightArrival& arrival = arrivals[i];
    lines.push_back(fmt::format("    {}: rank {} by {:.3f} ms", describe(arrival.record, names), arrival.last,
                                static_cast<double>(arrival.spread_ns) / 1e6));
  }
}

void add_rank_lines(const FlightSnapshot& snapshot, const FlightNames& names, std::size_t last_operations,
                    std::vector<std::string>& lines) {
  const std::size_t count = std::min(last_operations, snapshot.records.size());
  lines.push_back(fmt::format("{}, the last {} of {} operations:", name_of(snapshot), count, snapshot.operations));
  for (std::size_t i = snapshot.records.size() - count; i < snapshot.records.size(); ++i) {
    const FlightRecord& record = snapshot.records[i];
    const auto group = std::ranges::find(snapshot.groups, record.group, &FlightGroup::number);
    const std::string in = group == snapshot.groups.end() ? "" : fmt::format("{}: ", group->name);
    const std::string took = duration_of(record);
    std::string line = fmt::format("  {}  {}{}  {}{}", wall_time(snapshot, record.issued_ns), in,
                                   describe(record, names), to_string(record.state), took.empty() ? "" : ", " + took);
    if (record.error != 0) line += fmt::format(" ({})", error_name(record));
    lines.push_back(std::move(line));
  }
}

}  // namespace

FlightNames names_of(const std::vector<FlightSnapshot>& snapshots) {
  FlightNames names;
  for (const FlightSnapshot& snapshot : snapshots) names.add(snapshot.names);
  return names;
}

std::vector<GroupReport> report_of(const std::vector<FlightSnapshot>& snapshots) {
  const FlightNames noted = names_of(snapshots);
  std::vector<std::string> names;  // in the order of creation
  std::map<std::string, Members> members;
  std::map<std::string, int> sizes;
  const std::vector<std::int64_t> offsets = common_clock(snapshots);
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    const FlightSnapshot& snapshot = snapshots[i];
    std::map<std::string, std::uint32_t> newest;
    for (const FlightGroup& group : snapshot.groups) {
      newest[group.name] = group.number;
      sizes[group.name] = group.size;
      if (std::ranges::find(names, group.name) == names.end()) names.emplace_back(group.name);
    }
    for (const auto& [name, number] : newest) members[name].push_back({&snapshot, number, offsets[i]});
  }
  std::vector<GroupReport> reports;
  for (const std::string& name : names) {
    GroupReport report;
    report.name = name;
    report.size = sizes[name];
    for (const Member& each : members[name]) report.statuses.push_back(status_in(*each.snapshot, each.group));
    const std::string first = position(report.statuses.front(), noted);
    report.differ =
        std::ranges::any_of(report.statuses, [&](const auto& each) { return position(each, noted) != first; });
    report.mismatch = first_mismatch(members[name], noted);
    report.arrivals = arrivals_of(members[name], report.size);
    reports.push_back(std::move(report));
  }
  return reports;
}

std::string name_of(const FlightSnapshot& snapshot) {
  if (snapshot.pid == 0) return fmt::format("rank {}", snapshot.rank);
  return fmt::format("rank {} (host {}, pid {})", snapshot.rank, snapshot.host, snapshot.pid);
}

std::string duration_of(const FlightRecord& record) {
  if (record.started_ns == 0 || record.finished_ns < record.started_ns) return "";
  return fmt::format("{:.3f} ms", static_cast<double>(record.finished_ns - record.started_ns) / 1e6);
}

std::vector<std::string> report_lines(const std::vector<FlightSnapshot>& snapshots, std::size_t last_operations) {
  std::vector<std::string> lines;
  const FlightSnapshot& first = snapshots.front();
  lines.push_back(fmt::format("job {}: recordings of {} of {} ranks", first.job.empty() ? "without a name" : first.job,
                              snapshots.size(), first.world_size));
  for (const FlightSnapshot& each : snapshots) {
    std::string line = fmt::format("  {}", name_of(each));
    if (each.pid == 0) line += " never joined a group";
    if (!each.ended.empty()) line += fmt::format("{} {}", each.pid == 0 ? ";" : "", each.ended);
    if (each.torn != 0) line += fmt::format("; {} records were being written", each.torn);
    lines.push_back(std::move(line));
  }
  const FlightNames names = names_of(snapshots);
  for (const GroupReport& group : report_of(snapshots)) {
    lines.emplace_back();
    add_group_lines(group, names, lines);
    add_arrival_lines(group.arrivals, names, last_operations, lines);
  }
  for (const FlightSnapshot& each : snapshots) {
    if (each.records.empty() || last_operations == 0) continue;
    lines.emplace_back();
    add_rank_lines(each, names, last_operations, lines);
  }
  return lines;
}

}  // namespace lockstep::internal
