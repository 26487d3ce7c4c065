// Which checkpoints of a directory are kept. directory, rules -> what is removed. A set that any rule keeps stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

struct Retention {
  int keep_last = 0;             // this many of the highest steps; 0 keeps all, whatever the others say
  std::uint64_t keep_every = 0;  // steps that are multiples of it; 0: none
  // Of those that have the metric, this many of the best; the best ones of all that were ever kept.
  int keep_best = 0;
  std::string metric = {};
  bool higher_is_better = false;
};

namespace internal {

// Removes the sets that no rule keeps, never the one of `newest`, which has just been written and counts as one of the
// last. Without it, the newest one stays whose every byte is right. A damaged one (its manifest cannot be read, a file
// is missing or has another size) counts for nothing and is left alone. Blocks for disk I/O; after the deadline no
// further set is removed, and the next call goes on. Error{invalid_argument}: negative numbers, keep_best without a
// metric. Error{internal} as of list_sets() and remove_set().
void check(const Retention& rules);
// What it has removed.
std::vector<std::filesystem::path> prune_sets(const std::filesystem::path& directory, const Retention& rules,
                                              const std::filesystem::path& newest, Deadline deadline);
// What prune_sets() would remove. newest: empty, and all of one set is read.
std::vector<std::filesystem::path> sets_to_prune(const std::filesystem::path& directory, const Retention& rules,
                                                 const std::filesystem::path& newest);

}  // namespace internal
}  // namespace lockstep
