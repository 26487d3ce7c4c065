#include "lockstep/train/checkpoint/set_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::string_view kSetPrefix = "step-";
constexpr std::string_view kWritingSet = ".writing-";
constexpr std::string_view kRemovingSet = ".removing-";
constexpr mode_t kSetMode = 0700;
constexpr int kAttempts = 100;
constexpr int kReadings = 10;  // of a directory that changes meanwhile

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

bool is_hidden_name(const std::string& name) {
  return name.starts_with(fmt::format(".{}", kSetPrefix)) &&
         (name.find(kWritingSet) != std::string::npos || name.find(kRemovingSet) != std::string::npos);
}

// Whether it still has a name: a removed directory has no links.
bool is_linked(const internal::UniqueFd& directory) {
  struct stat status {};
  return ::fstat(directory.get(), &status) == 0 && status.st_nlink > 0;
}

void sync_path(const std::filesystem::path& path) {
  const internal::UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string doing = fmt::format("saving into {}: fsync", path.string());
  if (!directory) throw system_error(doing, errno);
  internal::AtomicFile::sync_directory(directory, doing);
}

enum class EntryKind { nothing, directory, file, other };

// Links are not followed. An unreadable entry is an error: it may be anything.
EntryKind entry_kind(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return EntryKind::nothing;
    throw system_error("looking at " + path.string(), errno);
  }
  if (S_ISDIR(status.st_mode)) return EntryKind::directory;
  return S_ISREG(status.st_mode) ? EntryKind::file : EntryKind::other;
}

bool is_set(const std::filesystem::path& path) {
  return entry_kind(path) == EntryKind::directory && entry_kind(path / internal::kManifestName) == EntryKind::file;
}

void require_replaceable(const std::filesystem::path& target) {
  // Another writer may be removing a set, or making one, between two looks.
  for (int look = 0; look < kReadings; ++look) {
    if (is_set(target) || entry_kind(target) == EntryKind::nothing || internal::holds_only_parts(target)) return;
  }
  throw Error(ErrorKind::invalid_argument, fmt::format("saving {}: something that is not a checkpoint has this name "
                                                       "and is not replaced; move it away, or name another directory",
                                                       target.string()));
}

// Of one reading of a directory. Where entries are renamed meanwhile it may lack one that was there all the time.
void add_names(const std::filesystem::path& directory, std::set<std::string>& names) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: the directory {} does not exist", directory.string()));
  }
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    names.insert(entries->path().filename().string());
  }
  if (error) throw system_error(fmt::format("listing {}", directory.string()), error.value());
}

// A directory that changes while it is read may show an old name, and not yet the one that replaces it.
std::set<std::string> settled_names(const std::filesystem::path& directory) {
  std::set<std::string> names;
  std::size_t before = 0;
  for (int reading = 0; reading < kReadings && (reading < 2 || names.size() != before); ++reading) {
    before = names.size();
    add_names(directory, names);
  }
  return names;
}

}  // namespace

std::filesystem::path set_path(const std::filesystem::path& directory, std::uint64_t step) {
  return directory / fmt::format("{}{:010}", kSetPrefix, step);
}

namespace internal {

std::filesystem::path whole_path(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path whole = directory.empty() ? directory : std::filesystem::absolute(directory, error);
  return error ? directory : whole;
}

void make_set_parent(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return;
  if (!directory.has_filename()) return make_set_parent(directory.parent_path());  // it ends with a slash
  const std::filesystem::path parent = directory.has_parent_path() ? directory.parent_path() : ".";
  make_set_parent(parent);
  if (::mkdir(directory.c_str(), kSetMode) == 0) return sync_path(parent);
  const int saved_errno = errno;
  // Another process may have made it in the meantime.
  if (saved_errno == EEXIST && std::filesystem::is_directory(directory, error)) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("checkpoints: cannot create the directory {}: {}; name another", directory.string(),
                          std::generic_category().message(saved_errno)));
}

SetDirectory::SetDirectory(const std::filesystem::path& directory, std::uint64_t step)
    : directory_(directory.empty() ? "." : directory), target_(set_path(directory_, step)) {
  make_set_parent(directory_);
  require_replaceable(target_);
  remove_abandoned_sets(directory_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    hidden_ = directory_ / fmt::format(".{}{}{}", target_.filename().string(), kWritingSet, random_digits());
    if (::mkdir(hidden_.c_str(), kSetMode) != 0) {
      if (errno == EEXIST) continue;
      throw system_error(fmt::format("saving {}: creating {}", target_.string(), hidden_.string()), errno);
    }
    lock_ = open_directory(hidden_);
    // Another writer may have taken it for an abandoned one before it was locked.
    if (lock(lock_) && is_linked(lock_)) return;
    lock_.reset();
    ::rmdir(hidden_.c_str());
  }
  throw Error(ErrorKind::internal, fmt::format("saving {}: could not create and lock a directory in {}",
                                               target_.string(), directory_.string()));
}

SetDirectory::~SetDirectory() {
  std::error_code ignored;
  if (lock_) std::filesystem::remove_all(hidden_, ignored);
}

std::filesystem::path SetDirectory::publish(const std::string& manifest, const std::function<void()>& before) {
  {
    AtomicFile file(hidden_ / kManifestName);
    file.write(std::as_bytes(std::span(manifest)));
    file.publish();
  }
  AtomicFile::sync_directory(lock_, fmt::format("saving {}: fsync", target_.string()));
  require_replaceable(target_);
  if (before) before();
  const std::filesystem::path old = take_name();
  lock_.reset();
  sync_path(directory_);
  std::error_code ignored;  // what stays is hidden, and goes with the next save
  if (!old.empty()) std::filesystem::remove_all(old, ignored);
  return target_;
}

std::filesystem::path SetDirectory::take_name() const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (::rename(hidden_.c_str(), target_.c_str()) == 0) return {};
    if (errno != ENOTEMPTY && errno != EEXIST) throw failed_rename(errno);
    if (auto old = exchange()) return *old;
  }
  throw failed_rename(EBUSY);
}

Error SetDirectory::failed_rename(int error) const {
  return system_error(fmt::format("saving {}: renaming {}", target_.string(), hidden_.string()), error);
}

std::optional<std::filesystem::path> SetDirectory::exchange() const {
  if (::renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return hidden_;
  if (errno == ENOENT) return std::nullopt;
  // Some file systems, of networks for instance, cannot exchange names. There the set is away for a moment.
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) throw failed_rename(errno);
  const std::filesystem::path old =
      directory_ / fmt::format(".{}{}{}", target_.filename().string(), kRemovingSet, random_digits());
  if (::rename(target_.c_str(), old.c_str()) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw failed_rename(errno);
  }
  if (::rename(hidden_.c_str(), target_.c_str()) == 0) return old;
  const int saved_errno = errno;
  ::rename(old.c_str(), target_.c_str());
  throw failed_rename(saved_errno);
}

std::optional<std::uint64_t> step_of_set(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kSetPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kSetPrefix.size(), end, step);
  if (error != std::errc() || stop != end || set_path("", step) != name) return std::nullopt;
  return step;
}

std::vector<SetPlace> list_sets(const std::filesystem::path& directory) {
  std::vector<SetPlace> sets;
  // The only set that was seen may be away by now, since a newer one has been written: then there is that one.
  bool has_lost_one = true;
  for (int listing = 0; listing < kReadings && has_lost_one && sets.empty(); ++listing) {
    has_lost_one = false;
    for (const std::string& name : settled_names(directory)) {
      const std::optional<std::uint64_t> step = step_of_set(name);
      if (!step) continue;
      if (is_set(directory / name)) {
        sets.push_back({*step, directory / name});
      } else {
        has_lost_one = has_lost_one || entry_kind(directory / name) == EntryKind::nothing;
      }
    }
  }
  std::ranges::sort(sets, std::ranges::greater(), &SetPlace::step);
  return sets;
}

bool has_parts_alone(const std::filesystem::path& path) {
  if (!step_of_set(path.filename().string()) || !open_directory(path) || is_set(path)) return false;
  std::error_code error;  // it may go away meanwhile
  std::filesystem::directory_iterator file(path, error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    if (file->path().extension() == ".safetensors") return true;
  }
  return false;
}

bool holds_only_parts(const std::filesystem::path& path) {
  if (!has_parts_alone(path)) return false;
  std::error_code error;
  std::filesystem::directory_iterator file(path, error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.starts_with("part-") || !name.ends_with(".safetensors") || name.find("-of-") == std::string::npos ||
        entry_kind(file->path()) != EntryKind::file) {
      return false;
    }
  }
  return !error;
}

std::vector<std::filesystem::path> list_parts_alone(const std::filesystem::path& directory) {
  std::set<std::string> names;
  add_names(directory, names);
  std::vector<std::filesystem::path> found;
  for (const std::string& name : names) {
    if (has_parts_alone(directory / name)) found.push_back(directory / name);
  }
  return found;
}

std::vector<HiddenSet> list_hidden_sets(const std::filesystem::path& directory) {
  std::vector<HiddenSet> sets;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!is_hidden_name(entry->path().filename().string())) continue;
    const UniqueFd found = open_directory(entry->path());
    // A living writer holds the lock.
    if (found) sets.push_back({entry->path(), ::flock(found.get(), LOCK_SH | LOCK_NB) == 0});
  }
  std::ranges::sort(sets, {}, &HiddenSet::path);
  return sets;
}

void remove_abandoned_sets(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!is_hidden_name(entry->path().filename().string())) continue;
    const UniqueFd found = open_directory(entry->path());
    std::error_code ignored;
    if (found && ::flock(found.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry->path(), ignored);
  }
}

std::filesystem::path hide_set(const std::filesystem::path& set) {
  std::string name = set.filename().string();
  if (!name.starts_with('.')) name = "." + name;
  const std::filesystem::path hidden = set.parent_path() / fmt::format("{}{}{}", name, kRemovingSet, random_digits());
  std::error_code error;
  std::filesystem::rename(set, hidden, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) throw system_error(fmt::format("removing {}", set.string()), error.value());
  return hidden;
}

void remove_set(const std::filesystem::path& set) {
  const std::filesystem::path hidden = hide_set(set);
  if (hidden.empty()) return;
  std::error_code error;
  // Another process may take it for leftovers of a killed one, and remove it at the same time.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::filesystem::remove_all(hidden, error);
    if (error != std::errc::no_such_file_or_directory) break;
  }
  if (error) throw system_error(fmt::format("removing {}", hidden.string()), error.value());
}

}  // namespace internal
}  // namespace lockstep
