#include "lockstep/train/checkpoint/set_search.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"

namespace lockstep::internal {
namespace {

constexpr int kPatientLists = 20;

// Follows links. Error{internal}: it is unknown.
bool is_there(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw system_error("looking for checkpoints: " + path.string(), errno);
}

bool is_link(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

bool is_alive(const HiddenSet& writer) { return !writer.is_abandoned; }

}  // namespace

std::optional<SetSearch::Identity> SetSearch::identity_of(const std::filesystem::path& set) {
  struct stat status {};
  if (::stat(set.c_str(), &status) == 0) {
    return Identity(status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  }
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw system_error("looking for a checkpoint: " + set.string(), errno);
}

void SetSearch::list() {
  ++lists_;
  was_replaced_ = false;
  candidates_.clear();
  if (is_there(directory_ / kManifestName)) {
    candidates_ = {directory_};
  } else if (is_there(directory_)) {
    for (const SetPlace& each : list_sets(directory_)) {
      if (each.step >= least_step_) candidates_.push_back(each.path);
    }
    pass_over_parts_alone();
  } else if (is_link(directory_)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: {} is a link to a directory that does not exist", directory_.string()));
  }
  has_seen_any_ = has_seen_any_ || !candidates_.empty();
  // Where names cannot be exchanged, a set that is replaced is away for a moment.
  if (candidates_.empty()) was_replaced_ = std::ranges::any_of(list_hidden_sets(directory_), is_alive);
}

void SetSearch::pass_over_parts_alone() {
  for (const std::filesystem::path& each : list_parts_alone(directory_)) {
    const std::optional<Identity> identity = identity_of(each);
    // Looked at once more, and still the same: not a set that is away or replaced just now.
    if (!identity || !has_parts_alone(each) || identity_of(each) != identity) continue;
    has_seen_any_ = true;
    if (!damaged_.insert(*identity).second) continue;
    log_warning(fmt::format("the checkpoint {} is skipped: its {} is missing", each.string(), kManifestName));
  }
}

bool SetSearch::is_damaged(const std::filesystem::path& set, const Identity& tried) {
  if (identity_of(set) != tried) {
    was_replaced_ = true;
    return false;
  }
  damaged_.insert(tried);
  return true;
}

std::optional<SetSearch::Found> SetSearch::attempt(const std::filesystem::path& set) {
  const std::optional<Identity> identity = identity_of(set);
  if (!identity) {
    was_replaced_ = true;
    return std::nullopt;
  }
  if (damaged_.contains(*identity)) return std::nullopt;
  try {
    Found found{.path = set, .manifest = SetReader::read_manifest(set)};
    const std::string name = (set / kManifestName).string();
    signature_.check(found.manifest, name);
    SetReader(set, parse_manifest(found.manifest, Origin(name))).check_files();
    last_ = {set, *identity};
    return found;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt_data && error.kind() != ErrorKind::invalid_argument) throw;
    if (is_damaged(set, *identity)) {
      log_warning(fmt::format("the checkpoint {} is skipped: {}", set.string(), error.what()));
    }
  }
  return std::nullopt;
}

std::optional<SetSearch::Found> SetSearch::next() {
  if (const auto last = std::exchange(last_, std::nullopt)) is_damaged(last->first, last->second);
  for (;;) {
    if (is_outdated()) list();
    if (candidates_.empty()) {
      if (is_outdated()) continue;
      return std::nullopt;
    }
    const std::filesystem::path set = std::move(candidates_.front());
    candidates_.erase(candidates_.begin());
    if (auto found = attempt(set)) return found;
  }
}

bool SetSearch::is_outdated() const {
  if (!was_replaced_) return false;
  // The replacement of a set is newer than the next one; but if a writer is fast enough, the next one is used as well.
  if (!candidates_.empty()) return lists_ < kPatientLists;
  return lists_ < (has_seen_any_ ? kMostLists : kPatientLists);
}

}  // namespace lockstep::internal
