#include "lockstep/train/checkpoint/retention.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/step_files.h"

namespace lockstep::internal {
namespace {

// Reads manifests, each once, and only those that are asked for.
class Manifests {
 public:
  // nullptr: it cannot be read, or a file of the set is missing or has another size.
  const Manifest* of(const std::filesystem::path& set) {
    const auto [found, is_new] = read_.try_emplace(set);
    if (!is_new) return found->second ? &*found->second : nullptr;
    try {
      SetReader reader(set);
      reader.check_files();
      found->second = reader.manifest();
    } catch (const Error&) {  // whoever loads it will say so
      return nullptr;
    }
    return &*found->second;
  }

 private:
  std::map<std::filesystem::path, std::optional<Manifest>> read_;
};

bool is_single_file(const SetPlace& place) { return step_of(place.path).has_value(); }

// Newest first; of the same step the set first.
std::vector<SetPlace> checkpoints_in(const std::filesystem::path& directory, SingleFiles files) {
  std::vector<SetPlace> all = list_sets(directory);
  if (files == SingleFiles::left_alone) return all;
  for (const StepFile& file : list_step_files(directory)) all.push_back({file.step, file.path});
  std::ranges::stable_sort(all, std::ranges::greater(), &SetPlace::step);
  return all;
}

// The best of those that have the metric, best first; the newer of two that are equal.
std::vector<std::filesystem::path> best(const std::vector<SetPlace>& sets, const Retention& rules,
                                        Manifests& manifests) {
  std::vector<std::pair<double, std::filesystem::path>> found;
  for (const SetPlace& each : sets) {
    const Manifest* manifest = manifests.of(each.path);
    if (manifest == nullptr) continue;
    const auto value = manifest->metrics.find(rules.metric);
    if (value != manifest->metrics.end()) found.emplace_back(value->second, each.path);
  }
  std::ranges::stable_sort(found, [&](const auto& a, const auto& b) {
    return rules.higher_is_better ? a.first > b.first : a.first < b.first;
  });
  std::vector<std::filesystem::path> paths;
  for (auto& [value, path] : found) paths.push_back(std::move(path));
  return paths;
}

// Also content can be damaged, which sizes do not show.
std::optional<std::filesystem::path> newest_whole(const std::vector<SetPlace>& sets, Manifests& manifests) {
  for (const SetPlace& each : sets) {
    if (manifests.of(each.path) == nullptr) continue;
    try {
      SetReader(each.path).verify();
      return each.path;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data && error.kind() != ErrorKind::invalid_argument) throw;
    }
  }
  return std::nullopt;
}

}  // namespace

void check(const Retention& rules) {
  if (rules.keep_last < 0 || rules.keep_best < 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: keep_last is {} and keep_best is {}; neither may be negative",
                            rules.keep_last, rules.keep_best));
  }
  if (rules.keep_best != 0 && rules.metric.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "checkpoints: keep_best needs a metric; set `metric` to the name of one that is saved");
  }
}

std::vector<std::filesystem::path> sets_to_prune(const std::filesystem::path& directory, const Retention& rules,
                                                 const std::filesystem::path& newest, SingleFiles files) {
  check(rules);
  std::vector<std::filesystem::path> removed;
  if (rules.keep_last == 0) return removed;
  const std::vector<SetPlace> sets = checkpoints_in(directory, files);
  Manifests manifests;
  const auto counts = [&](const SetPlace& each) { return is_single_file(each) || manifests.of(each.path) != nullptr; };
  // By name: the directory may be written in another way.
  const auto is_newest = [&](const SetPlace& each) { return each.path.filename() == newest.filename(); };
  std::set<std::filesystem::path> kept;
  std::size_t others = static_cast<std::size_t>(rules.keep_last) - (newest.empty() ? 0 : 1);
  for (const SetPlace& each : sets) {
    if (is_newest(each)) {
      kept.insert(each.path);
    } else if (others != 0 && counts(each)) {
      kept.insert(each.path);
      --others;
    }
    if (rules.keep_every != 0 && each.step % rules.keep_every == 0) kept.insert(each.path);
  }
  if (rules.keep_best != 0) {
    const auto paths = best(sets, rules, manifests);
    kept.insert(paths.begin(), paths.begin() + std::min<std::ptrdiff_t>(rules.keep_best, std::ssize(paths)));
  }
  for (const SetPlace& each : sets) {
    if (!kept.contains(each.path) && counts(each)) removed.push_back(each.path);
  }
  if (newest.empty() && !removed.empty()) {
    if (const auto whole = newest_whole(sets, manifests)) std::erase(removed, *whole);
  }
  return removed;
}

std::vector<std::filesystem::path> prune_sets(const std::filesystem::path& directory, const Retention& rules,
                                              const std::filesystem::path& newest, Deadline deadline,
                                              SingleFiles files) {
  std::vector<std::filesystem::path> removed;
  for (const std::filesystem::path& each : sets_to_prune(directory, rules, newest, files)) {
    if (deadline.expired()) break;
    if (step_of(each)) {
      remove_step_file(each);
    } else {
      remove_set(each);
    }
    removed.push_back(each);
  }
  return removed;
}

}  // namespace lockstep::internal
