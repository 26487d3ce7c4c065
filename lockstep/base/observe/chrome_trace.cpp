#include "lockstep/base/observe/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "lockstep/base/dtype.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/common_clock.h"
#include "lockstep/base/observe/flight_report.h"

namespace lockstep::internal {
namespace {

using nlohmann::json;

// Rows of a rank: the steps of model m in row m; from these on, collectives and messages.
constexpr int kCollectiveRows = 1000, kMessageRows = 2000;

// A stretch of time, on the common clock.
struct Stretch {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = std::numeric_limits<std::int64_t>::min();

  bool is_empty() const { return begin > end; }
  void include(std::int64_t from, std::int64_t to) {
    begin = std::min(begin, from);
    end = std::max(end, to);
  }
  bool overlaps(const Stretch& other) const { return begin <= other.end && other.begin <= end; }
};

// An operation of a rank in the trace.
struct Operation {
  const FlightRecord* record;
  Stretch time;
  int row = 0;
};

std::int64_t monotonic(std::int64_t ns) { return std::min(ns, kLatestMonotonic); }

class Rank {
 public:
  Rank(const FlightSnapshot& snapshot, std::int64_t offset) : snapshot_(snapshot), offset_(offset) {
    for (const FlightGroup& group : snapshot.groups) groups_[group.number] = &group;
    std::map<std::pair<std::string, int>, int> generations;
    for (const auto& [number, group] : groups_) generations_[number] = ++generations[{group->name, group->size}];
    for (const FlightRecord& record : snapshot.records) {
      latest_ =
          std::max({latest_, monotonic(record.issued_ns), monotonic(record.started_ns), monotonic(record.finished_ns)});
    }
  }

  const FlightSnapshot& snapshot() const { return snapshot_; }
  const FlightGroup* group(const FlightRecord& record) const {
    const auto found = groups_.find(record.group);
    return found == groups_.end() ? nullptr : found->second;
  }
  // Groups of one name and size, made one after another: the same in all their ranks.
  int generation(const FlightGroup& group) const { return generations_.at(group.number); }
  Stretch time_of(const FlightPhase& phase) const { return {phase.begin_ns + offset_, phase.end_ns + offset_}; }
  std::int64_t latest() const { return latest_ + offset_; }  // of its signs, on the common clock
  void set_end(std::int64_t time) { end_ = time; }
  // What has not ended lasts until the last sign of any rank.
  Stretch time_of(const FlightRecord& record) const {
    const std::int64_t begin = monotonic(record.started_ns != 0 ? record.started_ns : record.issued_ns);
    const std::int64_t end = record.finished_ns != 0 ? monotonic(record.finished_ns) + offset_ : end_;
    return {begin + offset_, std::max(begin + offset_, end)};
  }
  // Each in a row in which nothing else is at that time.
  std::vector<Operation> operations(const Stretch& window) const {
    std::vector<Operation> all;
    for (const FlightRecord& record : snapshot_.records) {
      const Operation operation{&record, time_of(record)};
      if (operation.time.overlaps(window)) all.push_back(operation);
    }
    std::ranges::stable_sort(all, {}, [](const Operation& each) { return each.time.begin; });
    std::map<int, std::vector<std::int64_t>> ends;  // by first row: when each of its rows is free
    for (Operation& operation : all) {
      const bool is_message = operation.record->category == FlightCategory::message;
      operation.row = is_message ? kMessageRows : kCollectiveRows;
      auto& rows = ends[operation.row];
      const auto free = std::ranges::find_if(rows, [&](std::int64_t end) { return end <= operation.time.begin; });
      operation.row += static_cast<int>(free - rows.begin());
      if (free == rows.end()) {
        rows.push_back(operation.time.end);
      } else {
        *free = operation.time.end;
      }
    }
    return all;
  }

 private:
  const FlightSnapshot& snapshot_;
  std::int64_t offset_;
  std::int64_t latest_ = 0;
  std::int64_t end_ = 0;
  std::map<std::uint32_t, const FlightGroup*> groups_;  // by number, which is the order in which they were made
  std::map<std::uint32_t, int> generations_;
};

// Writes events, whose times are microseconds since `base`.
class Events {
 public:
  explicit Events(std::int64_t base) : base_(base) {}

  void name_process(const FlightSnapshot& snapshot) {
    add_metadata("process_name", snapshot.rank, 0, {{"name", name_of(snapshot)}});
    add_metadata("process_sort_index", snapshot.rank, 0, {{"sort_index", snapshot.rank}});
  }
  void name_row(int rank, int row, const std::string& name) {
    add_metadata("thread_name", rank, row, {{"name", name}});
    add_metadata("thread_sort_index", rank, row, {{"sort_index", row}});
  }
  void add_span(const std::string& category, const std::string& name, int rank, int row, const Stretch& time,
                json arguments) {
    const double duration = static_cast<double>(time.end - time.begin) / 1e3;
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", rank},
                       {"tid", row},
                       {"ts", at(time.begin)},
                       {"dur", duration},
                       {"args", std::move(arguments)}});
  }
  // From within one span to within another.
  void add_arrow(std::pair<int, int> from, std::int64_t leaves, std::pair<int, int> to, std::int64_t arrives) {
    ++arrows_;
    for (const bool is_start : {true, false}) {
      const auto [rank, row] = is_start ? from : to;
      json event{{"ph", is_start ? "s" : "f"},
                 {"id", arrows_},
                 {"cat", "last_rank"},
                 {"name", "last rank"},
                 {"pid", rank},
                 {"tid", row},
                 {"ts", at(is_start ? leaves : arrives)}};
      if (!is_start) event["bp"] = "e";
      events_.push_back(std::move(event));
    }
  }
  json take() { return std::move(events_); }

 private:
  double at(std::int64_t time) const { return static_cast<double>(time - base_) / 1e3; }
  void add_metadata(const char* name, int rank, int row, json arguments) {
    events_.push_back(
        {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", row}, {"ts", 0.0}, {"args", std::move(arguments)}});
  }

  std::int64_t base_;
  std::int64_t arrows_ = 0;
  json events_ = json::array();
};

using Step = std::pair<std::uint32_t, std::uint64_t>;  // model and number

// The last steps of each model that the rank has recorded.
bool is_among(const std::vector<FlightPhase>& phases, const FlightPhase& phase, std::size_t last_steps) {
  std::uint64_t newest = 0;
  for (const FlightPhase& each : phases) {
    if (each.model == phase.model) newest = std::max(newest, each.step);
  }
  return last_steps == 0 || newest - phase.step < last_steps;
}

// What the trace shows: all of the recording, or the time of the last steps.
Stretch window_of(const std::vector<Rank>& ranks, std::size_t last_steps) {
  Stretch window;
  for (const Rank& rank : ranks) {
    for (const FlightPhase& phase : rank.snapshot().phases) {
      const Stretch time = rank.time_of(phase);
      if (is_among(rank.snapshot().phases, phase, last_steps)) window.include(time.begin, time.end);
    }
    if (last_steps != 0) continue;
    for (const FlightRecord& record : rank.snapshot().records) {
      window.include(rank.time_of(record).begin, rank.time_of(record).end);
    }
  }
  return window;
}

void add_steps(const Rank& rank, std::size_t last_steps, Events& events) {
  const FlightSnapshot& snapshot = rank.snapshot();
  std::map<Step, Stretch> steps;
  std::map<std::uint32_t, bool> models;
  for (const FlightPhase& phase : snapshot.phases) {
    if (!is_among(snapshot.phases, phase, last_steps)) continue;
    models[phase.model] = true;
    const Stretch time = rank.time_of(phase);
    steps[{phase.model, phase.step}].include(time.begin, time.end);
  }
  for (const auto& [model, exists] : models) {
    const std::string of_model = model == 1 ? "" : fmt::format(" of model {}", model);
    events.name_row(snapshot.rank, static_cast<int>(model), "steps" + of_model);
  }
  // A step before its phases: of spans that begin together the first one is the outer one.
  for (const auto& [step, time] : steps) {
    events.add_span("user_annotation", fmt::format("step {}", step.second), snapshot.rank, static_cast<int>(step.first),
                    time, {{"step", step.second}});
  }
  for (const FlightPhase& phase : snapshot.phases) {
    if (!is_among(snapshot.phases, phase, last_steps)) continue;
    const auto us = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
    events.add_span("phase", std::string(to_string(phase.phase)), snapshot.rank, static_cast<int>(phase.model),
                    rank.time_of(phase),
                    {{"step", phase.step},
                     {"waiting us", us(phase.waiting_ns)},
                     {"communicating us", us(phase.communicating_ns)},
                     {"hidden communication us", us(phase.hidden_ns)}});
  }
}

// Where a collective is in the trace, by rank of the job.
struct Meeting {
  std::vector<std::pair<const Rank*, Operation>> visits;

  const std::pair<const Rank*, Operation>& last() const {
    return *std::ranges::max_element(visits, {}, [](const auto& visit) { return visit.second.time.begin; });
  }
};
// Name, size and generation of the group; sequence of the collective in it.
using MeetingKey = std::tuple<std::string, int, int, std::uint64_t>;
using Meetings = std::map<MeetingKey, Meeting>;

json arguments_of(const Rank& rank, const FlightRecord& record, const FlightNames& names) {
  json arguments{{"state", to_string(record.state)}, {"call", describe(record, names)}};
  if (const FlightGroup* group = rank.group(record)) {
    arguments["Process Group Name"] = group->name;
    arguments["Group size"] = group->size;
  }
  const bool is_message = record.category == FlightCategory::message;
  const std::uint64_t element = is_message ? 1 : element_size(record.dtype);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;  // what a damaged recording may say
  arguments["bytes"] = std::min(record.count, kMost) * element;
  if (is_message) {
    arguments["peer"] = record.peer;
    arguments["tag"] = record.tag;
  } else {
    arguments["Collective name"] = record.operation;
    arguments["dtype"] = to_string(record.dtype);
    arguments["In msg nelems"] = record.count;
    arguments["Seq"] = record.sequence;
  }
  if (record.error != 0) arguments["error"] = to_string(static_cast<ErrorKind>(record.error - 1));
  return arguments;
}

void add_operations(const Rank& rank, const Stretch& window, const FlightNames& names, Meetings& meetings,
                    Events& events) {
  const int number = rank.snapshot().rank;
  std::map<int, bool> rows;
  for (const Operation& operation : rank.operations(window)) {
    const FlightRecord& record = *operation.record;
    const bool is_message = record.category == FlightCategory::message;
    if (!std::exchange(rows[operation.row], true)) {
      events.name_row(number, operation.row, is_message ? "messages" : "collectives");
    }
    events.add_span(is_message ? "message" : "collective", record.operation, number, operation.row, operation.time,
                    arguments_of(rank, record, names));
    const FlightGroup* group = rank.group(record);
    if (is_message || record.sequence == 0 || group == nullptr) continue;
    const MeetingKey key{group->name, group->size, rank.generation(*group), record.sequence};
    meetings[key].visits.emplace_back(&rank, operation);
  }
}

void add_arrows(const Meetings& meetings, Events& events) {
  for (const auto& [key, meeting] : meetings) {
    const auto& [last, at] = meeting.last();
    for (const auto& [rank, operation] : meeting.visits) {
      // A rank that left before the last one came did not need it.
      if (rank == last || operation.time.end < at.time.begin) continue;
      const std::int64_t arrives = at.time.begin + (operation.time.end - at.time.begin) / 2;
      events.add_arrow({last->snapshot().rank, at.row}, at.time.begin, {rank->snapshot().rank, operation.row}, arrives);
    }
  }
}

}  // namespace

std::string chrome_trace(const std::vector<FlightSnapshot>& snapshots, std::size_t last_steps) {
  const std::vector<std::int64_t> offsets = common_clock(snapshots);
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < snapshots.size(); ++i) ranks.emplace_back(snapshots[i], offsets[i]);
  if (!ranks.empty()) {
    const std::int64_t end = std::ranges::max_element(ranks, {}, &Rank::latest)->latest();
    for (Rank& rank : ranks) rank.set_end(end);
  }
  const Stretch window = window_of(ranks, last_steps);
  const std::int64_t base = window.is_empty() ? 0 : window.begin;
  Events events(base);
  Meetings meetings;
  const FlightNames names = names_of(snapshots);
  for (const Rank& rank : ranks) {
    events.name_process(rank.snapshot());
    add_steps(rank, last_steps, events);
    add_operations(rank, window, names, meetings, events);
  }
  add_arrows(meetings, events);
  const json trace{{"schemaVersion", 1},
                   {"displayTimeUnit", "ms"},
                   {"baseTimeNanoseconds", base},
                   {"traceName", snapshots.empty() ? "" : snapshots.front().job},
                   {"distributedInfo", {{"world_size", snapshots.empty() ? 0 : snapshots.front().world_size}}},
                   {"traceEvents", events.take()}};
  return trace.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lockstep::internal
