#include "lockstep/job/launch/flight_recordings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/flight_file.h"
#include "lockstep/base/observe/flight_layout.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/own_links.h"
#include "lockstep/job/launch/recordings_folder.h"
#include "lockstep/job/launch/shell_quoted.h"

namespace lockstep::internal {
namespace {

constexpr std::uint64_t kMostLookedAt = 128;  // operations

bool went_wrong(const Outcome& outcome) {
  return !outcome.hang.empty() ||
         std::ranges::any_of(outcome.ranks, [](const RankEnd& end) { return !end.failure.text.empty(); });
}

std::string how_it_ended(const Outcome& outcome, int rank) {
  for (const RankEnd& end : outcome.ranks) {
    if (end.rank != rank) continue;
    const std::string how = failure_text(end).empty() ? describe(end.status) : failure_text(end);
    return end.told_to_stop ? how + ", after the launcher asked it to stop" : how;
  }
  return "";
}

bool is_begun_collective(const FlightRecord& record) {
  return record.category == FlightCategory::collective && record.sequence != 0 && record.started_ns != 0;
}

// When a rank has begun a collective, by what its group is called everywhere. Only its last operations are looked at.
std::optional<std::int64_t> begun_ns(const FlightMemory& memory, std::string_view group, std::uint64_t sequence) {
  const std::uint64_t newest = memory.header().operations.load(std::memory_order_acquire);
  const std::uint64_t oldest = newest - std::min(newest, kMostLookedAt);
  for (std::uint64_t number = newest; number > oldest; --number) {
    FlightRecord record;
    FlightGroup of;
    if (read_slot(memory.slot(number), record) != flight::SlotState::whole || !is_sound(record)) continue;
    if (record.number != number || !is_begun_collective(record)) continue;
    if (read_slot(memory.group(record.group), of) != flight::SlotState::whole || !is_sound(of)) continue;
    if (of.number != record.group || of.name != group) continue;
    if (record.sequence == sequence) return record.started_ns;
    if (record.sequence < sequence) break;  // it has not come to it
  }
  return std::nullopt;
}

}  // namespace

FlightRecordings::FlightRecordings(const std::string& job_id, int first_rank, int ranks, int world_size)
    : job_id_(job_id), first_rank_(first_rank) {
  try {
    for (int rank = first_rank; rank < first_rank + ranks; ++rank) {
      memories_.push_back(FlightMemory::make_shared({.rank = rank, .world_size = world_size, .job_id = job_id}));
    }
  } catch (const Error& error) {
    log_warning(fmt::format("{}; the job runs without a flight recording", error.what()));
    memories_.clear();
  }
}

int FlightRecordings::fd(int rank) const {
  return memories_.empty() ? -1 : memories_[static_cast<std::size_t>(rank - first_rank_)].fd();
}

const FlightMemory* FlightRecordings::memory(int rank) const {
  return memories_.empty() ? nullptr : &memories_[static_cast<std::size_t>(rank - first_rank_)];
}

std::optional<FlightFailure> FlightRecordings::failure(int rank) const {
  return memories_.empty() ? std::nullopt : memories_[static_cast<std::size_t>(rank - first_rank_)].last_failure();
}

LastOperation FlightRecordings::last_operation(int rank) const {
  const int descriptor = fd(rank);
  if (descriptor < 0) return {};
  try {
    const FlightSnapshot snapshot = read_flight_file(fmt::format("/proc/self/fd/{}", descriptor));
    if (snapshot.records.empty()) return {};
    const FlightRecord& last = snapshot.records.back();
    LastOperation operation{.text = describe(last, snapshot.names) + (last.finished_ns == 0 ? ", not finished" : "")};
    const auto group = std::ranges::find(snapshot.groups, last.group, &FlightGroup::number);
    if (group != snapshot.groups.end()) operation.lateness_ns = lateness_ns(group->name, last);
    return operation;
  } catch (const Error&) {  // the rank has recorded nothing, or damaged it
    return {};
  }
}

std::optional<std::int64_t> FlightRecordings::lateness_ns(const std::string& group,
                                                          const FlightRecord& collective) const {
  if (memories_.size() < 2 || !is_begun_collective(collective)) return std::nullopt;
  std::int64_t first = collective.started_ns;
  for (const FlightMemory& memory : memories_) {
    first = std::min(first, begun_ns(memory, group, collective.sequence).value_or(first));
  }
  return collective.started_ns - first;
}

std::string FlightRecordings::save(const Outcome& outcome, const std::string& directory, int attempt) const {
  const bool recorded = std::ranges::any_of(memories_, &FlightMemory::is_signed);
  if (!recorded || (directory.empty() && !went_wrong(outcome))) return "";
  std::string place;
  try {
    const std::string parent = state_folder();
    const std::string job = directory.empty() ? make_job_folder(parent, job_id_) : directory;
    if (directory.empty()) {
      prune_job_folders(parent);
    } else {
      make_flight_directory(job);
      open_folder(job, "writing to it");
      remove_recordings(job, job_id_);  // another may have had more ranks; other launchers of this one save here, too
    }
    place = make_attempt_folder(job, attempt);
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      const int number = first_rank_ + static_cast<int>(i);
      memories_[i].save(place + "/" + flight_file_name(number), how_it_ended(outcome, number));
    }
    if (directory.empty()) prune_attempts(job);
  } catch (const Error& error) {
    return fmt::format("the flight recording could not be saved: {}", error.what());
  }
  return fmt::format("to see where each rank was: lockstep trace --flight {}", shell_quoted(place));
}

}  // namespace lockstep::internal
