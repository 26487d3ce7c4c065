#include "lockstep/job/launch/recordings_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/observe/flight_layout.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kAttempt = "attempt_";
constexpr std::int64_t kSecond = 1'000'000'000;

std::string variable(const char* name) { return EnvironmentReader().text(name).value_or(""); }

void for_each_entry(const std::string& folder, const std::function<void(const std::filesystem::path&)>& use) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) use(entry->path());
}

// The status of a folder of this user; nothing for anything else, as a link.
std::optional<struct stat> own_folder(const std::string& path) {
  struct stat status {};
  const bool is_own = ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
  return is_own ? std::optional(status) : std::nullopt;
}

// Where others may make folders, one of them may have made it before.
void make_own_folder(const std::string& path) {
  make_flight_directory(path);
  if (own_folder(path)) return;
  throw Error(ErrorKind::unauthorized, fmt::format("{} is not a folder of this user; remove it", path));
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

bool is_job_id(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The number in attempt_<n>; nothing for other names, and for the first attempt, which has no folder of its own.
std::optional<int> attempt_of(const std::string& name) {
  int number = 0;
  if (!name.starts_with(kAttempt)) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + kAttempt.size(), end, number);
  const bool is_number =
      error == std::errc() && stopped == end && number > 0 && attempt_folder("", number) == "/" + name;
  return is_number ? std::optional(number) : std::nullopt;
}

bool has_recordings(const std::string& folder) {
  bool found = false;
  for_each_entry(folder, [&](const std::filesystem::path& path) {
    found = found || is_flight_file_name(path.filename().string());
  });
  return found;
}

void remove_recordings_in(const std::string& folder, const std::string& but_of_job) {
  for_each_entry(folder, [&](const std::filesystem::path& path) {
    if (!is_flight_file_name(path.filename().string())) return;
    const std::optional<std::string> job = job_of_recording(path);
    if (job && (but_of_job.empty() || *job != but_of_job)) ::unlink(path.c_str());
  });
}

// The folders of jobs with the times of their last attempts, in nanoseconds since 1970; the newest first.
std::vector<std::pair<std::int64_t, std::string>> job_folders(const std::string& parent) {
  std::vector<std::pair<std::int64_t, std::string>> jobs;
  for_each_entry(parent, [&](const std::filesystem::path& path) {
    if (!is_job_id(path.filename())) return;
    const auto status = own_folder(path);
    if (status) jobs.emplace_back(status->st_mtim.tv_sec * kSecond + status->st_mtim.tv_nsec, path);
  });
  std::ranges::sort(jobs, std::greater<>());
  return jobs;
}

}  // namespace

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
  std::string folder = parent + "/" + job_id;
  if (parent.empty() || ::access(parent.c_str(), W_OK | X_OK) != 0) {
    const std::string temporary = variable("TMPDIR");
    folder = (temporary.empty() ? "/tmp" : temporary) + "/lockstep-flight-" + job_id;
  }
  make_own_folder(folder);
  return folder;
}

std::string attempt_folder(const std::string& job_folder, int attempt) {
  return attempt == 0 ? job_folder : fmt::format("{}/{}{}", job_folder, kAttempt, attempt);
}

std::string make_attempt_folder(const std::string& job_folder, int attempt) {
  const std::string folder = attempt_folder(job_folder, attempt);
  if (attempt != 0) make_own_folder(folder);
  return folder;
}

std::vector<int> recorded_attempts(const std::string& job_folder) {
  std::vector<int> attempts;
  std::error_code error;
  if (has_recordings(job_folder)) attempts.push_back(0);
  for_each_entry(job_folder, [&](const std::filesystem::path& path) {
    const std::optional<int> attempt = attempt_of(path.filename());
    if (attempt && !std::filesystem::is_symlink(path, error) && has_recordings(path)) attempts.push_back(*attempt);
  });
  std::ranges::sort(attempts);
  return attempts;
}

std::string newest_job_folder(const std::string& parent) {
  for (const auto& [changed, folder] : job_folders(parent)) {
    if (!recorded_attempts(folder).empty()) return folder;
  }
  return "";
}

void prune_job_folders(const std::string& parent) noexcept {
  try {
    const auto jobs = job_folders(parent);
    const std::int64_t oldest = (std::time(nullptr) - std::time_t{kKeptDays} * 24 * 3600) * kSecond;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto& [changed, folder] = jobs[i];
      if (i < kKeptJobs && changed >= oldest) continue;
      remove_recordings(folder);
      ::rmdir(folder.c_str());  // fails if it holds anything else
    }
  } catch (...) {  // no memory for the list: another time
  }
}

void prune_attempts(const std::string& job_folder) noexcept {
  try {
    const std::vector<int> attempts = recorded_attempts(job_folder);
    for (std::size_t i = 1; i + kKeptAttempts - 1 < attempts.size(); ++i) {
      const std::string folder = attempt_folder(job_folder, attempts[i]);
      remove_recordings(folder);
      ::rmdir(folder.c_str());
    }
  } catch (...) {
  }
}

void remove_recordings(const std::string& folder, const std::string& but_of_job) noexcept {
  try {
    remove_recordings_in(folder, but_of_job);
    for_each_entry(folder, [&](const std::filesystem::path& path) {
      if (!attempt_of(path.filename()) || !own_folder(path)) return;
      remove_recordings_in(path, but_of_job);
      ::rmdir(path.c_str());  // fails if it holds anything else
    });
  } catch (...) {
  }
}

}  // namespace lockstep::internal
