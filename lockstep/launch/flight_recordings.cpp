#include "lockstep/launch/flight_recordings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/shell_quoted.h"
#include "lockstep/observe/flight_file.h"
#include "lockstep/observe/flight_layout.h"
#include "lockstep/observe/process_recorder.h"

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
    return end.told_to_stop ? how + ", after the launcher had told it to stop" : how;
  }
  return "";
}

std::string variable(const char* name) { return EnvironmentReader().text(name).value_or(""); }

void for_each_entry(const std::string& folder, const std::function<void(const std::filesystem::path&)>& use) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) use(entry->path());
}

// The job of a recording of this user; nothing if the file is something else.
std::optional<std::string> job_of_recording(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  std::uint64_t magic = 0;
  const bool is_recording = fd && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                            status.st_uid == ::geteuid() &&
                            ::pread(fd.get(), &magic, sizeof magic, 0) == sizeof magic && magic == flight::kMagic;
  if (!is_recording) return std::nullopt;
  std::string job(sizeof(flight::FlightHeader::job), '\0');
  if (::pread(fd.get(), job.data(), job.size(), offsetof(flight::FlightHeader, job)) < 0) return "";
  return job.substr(0, job.find('\0'));
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

bool is_job_id(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
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
  std::string place = directory;
  try {
    if (directory.empty()) {
      const std::string parent = state_folder();
      place = make_job_folder(parent, job_id_);
      prune_job_folders(parent);
    } else {
      make_flight_directory(place);
      if (attempt > 0) make_flight_directory(place += fmt::format("/attempt_{}", attempt));
      // Another job may have had more ranks; other launchers of this one save theirs here, too.
      remove_recordings(place, job_id_);
    }
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      const int number = first_rank_ + static_cast<int>(i);
      memories_[i].save(place + "/" + flight_file_name(number), how_it_ended(outcome, number));
    }
  } catch (const Error& error) {
    return fmt::format("the flight recording is lost: {}", error.what());
  }
  return fmt::format("to see where each rank was: lockstep trace --flight {}", shell_quoted(place));
}

std::string state_folder() {
  std::string state = variable("XDG_STATE_HOME");
  if (!state.starts_with('/')) {  // its specification says to ignore other paths
    const std::string home = variable("HOME");
    if (!home.starts_with('/')) return "";
    state = home + "/.local/state";
  }
  return state + "/lockstep/flight";
}

std::string make_job_folder(const std::string& parent, const std::string& job_id) {
  // create_directories() would make folders that all may read.
  for (std::size_t end = parent.find('/', 1); !parent.empty(); end = parent.find('/', end + 1)) {
    ::mkdir(parent.substr(0, end).c_str(), 0700);
    if (end == std::string::npos) break;
  }
  if (!parent.empty() && ::access(parent.c_str(), W_OK | X_OK) == 0) {
    make_flight_directory(parent + "/" + job_id);
    return parent + "/" + job_id;
  }
  const std::string temporary = variable("TMPDIR");
  const std::string folder = (temporary.empty() ? "/tmp" : temporary) + "/lockstep-flight-" + job_id;
  make_flight_directory(folder);
  return folder;
}

void prune_job_folders(const std::string& parent) noexcept {
  try {
    std::vector<std::pair<std::time_t, std::string>> jobs;
    for_each_entry(parent, [&](const std::filesystem::path& path) {
      struct stat status {};
      const bool is_ours = is_job_id(path.filename()) && ::lstat(path.c_str(), &status) == 0 &&
                           S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
      if (is_ours) jobs.emplace_back(status.st_mtime, path);
    });
    std::ranges::sort(jobs, std::greater<>());
    const std::time_t oldest = std::time(nullptr) - std::time_t{kKeptDays} * 24 * 3600;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto& [changed, folder] = jobs[i];
      if (i < kKeptJobs && changed >= oldest) continue;
      remove_recordings(folder);
      ::rmdir(folder.c_str());  // fails if it holds anything else
    }
  } catch (...) {  // no memory for the list: another time
  }
}

void remove_recordings(const std::string& folder, const std::string& but_of_job) noexcept {
  try {
    for_each_entry(folder, [&](const std::filesystem::path& path) {
      if (!is_flight_file_name(path.filename().string())) return;
      const std::optional<std::string> job = job_of_recording(path);
      if (job && (but_of_job.empty() || *job != but_of_job)) ::unlink(path.c_str());
    });
  } catch (...) {
  }
}

}  // namespace lockstep::internal
