#include "lockstep/checkpoint/retention.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/set_directory.h"
#include "lockstep/checkpoint/set_reader.h"

namespace lockstep::internal {
namespace {

// The best of those that have the metric, best first; the newer of two that are equal.
std::vector<std::filesystem::path> best(const std::vector<SetPlace>& sets, const Retention& rules) {
  std::vector<std::pair<double, std::filesystem::path>> found;
  for (const SetPlace& each : sets) {
    try {
      const Manifest manifest = SetReader(each.path).manifest();
      const auto value = manifest.metrics.find(rules.metric);
      if (value != manifest.metrics.end()) found.emplace_back(value->second, each.path);
    } catch (const Error&) {  // whoever loads it will say so
    }
  }
  std::ranges::stable_sort(found, [&](const auto& a, const auto& b) {
    return rules.higher_is_better ? a.first > b.first : a.first < b.first;
  });
  std::vector<std::filesystem::path> paths;
  for (auto& [value, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace

void check(const Retention& rules) {
  if (rules.keep_last < 0 || rules.keep_best < 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoints: keep_last is {} and keep_best {}; neither may be negative", rules.keep_last,
                            rules.keep_best));
  }
  if (rules.keep_best != 0 && rules.metric.empty()) {
    throw Error(ErrorKind::invalid_argument, "checkpoints: keep_best needs a metric, by whose name the best are found");
  }
}

std::vector<std::filesystem::path> sets_to_prune(const std::filesystem::path& directory, const Retention& rules,
                                                 const std::filesystem::path& newest) {
  check(rules);
  std::vector<std::filesystem::path> removed;
  if (rules.keep_last == 0) return removed;
  const std::vector<SetPlace> sets = list_sets(directory);
  std::set<std::filesystem::path> kept{newest};
  std::size_t others = static_cast<std::size_t>(rules.keep_last) - (newest.empty() ? 0 : 1);
  for (const SetPlace& each : sets) {
    if (each.path != newest && others != 0) {
      kept.insert(each.path);
      --others;
    }
    if (rules.keep_every != 0 && each.step % rules.keep_every == 0) kept.insert(each.path);
  }
  if (rules.keep_best != 0) {
    const auto paths = best(sets, rules);
    kept.insert(paths.begin(), paths.begin() + std::min<std::ptrdiff_t>(rules.keep_best, std::ssize(paths)));
  }
  for (const SetPlace& each : sets) {
    if (!kept.contains(each.path)) removed.push_back(each.path);
  }
  return removed;
}

std::vector<std::filesystem::path> prune_sets(const std::filesystem::path& directory, const Retention& rules,
                                              const std::filesystem::path& newest) {
  std::vector<std::filesystem::path> removed = sets_to_prune(directory, rules, newest);
  for (const std::filesystem::path& each : removed) remove_set(each);
  return removed;
}

}  // namespace lockstep::internal
