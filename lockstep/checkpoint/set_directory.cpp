#include "lockstep/checkpoint/set_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <random>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/atomic_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kSetPrefix = "step-";
constexpr std::string_view kWritingSet = ".writing-";
constexpr std::string_view kRemovingSet = ".removing-";
constexpr mode_t kSetMode = 0700;

internal::UniqueFd open_directory(const std::filesystem::path& path) {
  return internal::UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool lock(const internal::UniqueFd& directory) {
  return directory && (::flock(directory.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
}

std::string random_digits() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// A living writer holds a lock on its hidden directory.
void remove_abandoned_sets(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_hidden =
        name.starts_with(fmt::format(".{}", kSetPrefix)) &&
        (name.find(kWritingSet) != std::string::npos || name.find(kRemovingSet) != std::string::npos);
    if (!is_hidden) continue;
    const internal::UniqueFd found = open_directory(entry->path());
    std::error_code ignored;
    if (found && ::flock(found.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry->path(), ignored);
  }
}

void sync_path(const std::filesystem::path& path) {
  const internal::UniqueFd directory = open_directory(path);
  const std::string doing = fmt::format("saving into {}: fsync", path.string());
  if (!directory) throw system_error(doing, errno);
  internal::AtomicFile::sync_directory(directory, doing);
}

}  // namespace

std::filesystem::path set_path(const std::filesystem::path& directory, std::uint64_t step) {
  return directory / fmt::format("{}{:010}", kSetPrefix, step);
}

namespace internal {

void make_set_parent(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return;
  if (directory.has_parent_path()) make_set_parent(directory.parent_path());
  if (::mkdir(directory.c_str(), kSetMode) == 0 || errno == EEXIST) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("checkpoints: the directory {} cannot be made: {}; name another",
                                                       directory.string(), std::generic_category().message(errno)));
}

SetDirectory::SetDirectory(const std::filesystem::path& directory, std::uint64_t step)
    : directory_(directory.empty() ? "." : directory), target_(set_path(directory_, step)) {
  make_set_parent(directory_);
  remove_abandoned_sets(directory_);
  hidden_ = directory_ / fmt::format(".{}{}{}", target_.filename().string(), kWritingSet, random_digits());
  if (::mkdir(hidden_.c_str(), kSetMode) != 0) {
    throw system_error(fmt::format("saving {}: making {}", target_.string(), hidden_.string()), errno);
  }
  lock_ = open_directory(hidden_);
  if (lock(lock_)) return;
  ::rmdir(hidden_.c_str());
  throw Error(ErrorKind::internal, fmt::format("saving {}: {} cannot be locked", target_.string(), hidden_.string()));
}

SetDirectory::~SetDirectory() {
  std::error_code ignored;
  if (lock_) std::filesystem::remove_all(hidden_, ignored);
}

std::filesystem::path SetDirectory::publish(const std::string& manifest) {
  {
    AtomicFile file(hidden_ / kManifestName);
    file.write(std::as_bytes(std::span(manifest)));
    file.publish();
  }
  AtomicFile::sync_directory(lock_, fmt::format("saving {}: fsync", target_.string()));
  const auto failed = [&](int error) {
    return system_error(fmt::format("saving {}: renaming {}", target_.string(), hidden_.string()), error);
  };
  if (::rename(hidden_.c_str(), target_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) throw failed(errno);
    // There is a set of this step already. Where names cannot be exchanged, it is away for a moment.
    if (::renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
      std::error_code ignored;  // what stays is hidden, and goes with the next save
      std::filesystem::remove_all(hidden_, ignored);
    } else {
      remove_set(target_);
      if (::rename(hidden_.c_str(), target_.c_str()) != 0) throw failed(errno);
    }
  }
  lock_.reset();
  sync_path(directory_);
  return target_;
}

std::optional<std::uint64_t> step_of_set(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kSetPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kSetPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

std::vector<SetPlace> list_sets(const std::filesystem::path& directory) {
  std::vector<SetPlace> sets;
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoints: no directory {}", directory.string()));
  }
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::optional<std::uint64_t> step = step_of_set(entries->path());
    std::error_code vanished;  // another process may be tidying up
    if (!step || !std::filesystem::is_directory(entries->symlink_status(vanished))) continue;
    if (std::filesystem::is_regular_file(std::filesystem::symlink_status(entries->path() / kManifestName, vanished))) {
      sets.push_back({*step, entries->path()});
    }
  }
  if (error) throw system_error(fmt::format("listing {}", directory.string()), error.value());
  std::ranges::sort(
      sets, [](const SetPlace& a, const SetPlace& b) { return a.step != b.step ? a.step > b.step : a.path < b.path; });
  return sets;
}

void remove_set(const std::filesystem::path& set) {
  std::string name = set.filename().string();
  if (!name.starts_with('.')) name = "." + name;
  const std::filesystem::path hidden = set.parent_path() / fmt::format("{}{}{}", name, kRemovingSet, random_digits());
  std::error_code error;
  std::filesystem::rename(set, hidden, error);
  if (error) throw system_error(fmt::format("removing {}", set.string()), error.value());
  std::filesystem::remove_all(hidden, error);
  if (error) throw system_error(fmt::format("removing {}", hidden.string()), error.value());
}

}  // namespace internal
}  // namespace lockstep
