// Which checkpoints of a directory are kept. directory, rules -> sets to remove. A set that any rule keeps is kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

struct Retention {
  int keep_last = 0;             // this many of the highest steps; 0 keeps all, regardless of the other rules
  std::uint64_t keep_every = 0;  // steps that are multiples of it; 0: none
  // This many sets with the best values of the metric, among those that have it and were kept so far.
  int keep_best = 0;
  std::string metric = {};
  bool higher_is_better = false;
};

namespace internal {

// Removes the sets that no rule keeps, never the one of `newest`, which has just been written and counts as one of the
// last. Without it, the newest set that is verified in full is kept. A damaged set (its manifest cannot be read, a file
// is missing or has another size) is not counted and left alone. Blocks for disk I/O; after the deadline no further set
// is removed, and the next call continues. Error{invalid_argument}: negative numbers, keep_best without a metric.
// Error{internal} as of list_sets() and remove_set().
void check(const Retention& rules);
// Single files of earlier versions, step-0000000400.safetensors: left alone, or counted and removed like sets.
enum class SingleFiles { left_alone, counted };
// Returns the removed sets.
std::vector<std::filesystem::path> prune_sets(const std::filesystem::path& directory, const Retention& rules,
                                              const std::filesystem::path& newest, Deadline deadline,
                                              SingleFiles files = SingleFiles::left_alone);
// The sets that prune_sets() would remove. If `newest` is empty, all of one set is read.
std::vector<std::filesystem::path> sets_to_prune(const std::filesystem::path& directory, const Retention& rules,
                                                 const std::filesystem::path& newest,
                                                 SingleFiles files = SingleFiles::left_alone);

}  // namespace internal
}  // namespace lockstep
