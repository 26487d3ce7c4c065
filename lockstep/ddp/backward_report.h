// What ranks tell each other at the end of a backward, in one collective, if the options ask for it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/group/process_group.h"

namespace lockstep {

struct BackwardReport {
  double weight = 0;                      // of this rank's gradients
  std::optional<std::size_t> non_finite;  // a parameter whose gradient held NaN or Inf
  std::vector<bool> used;                 // by parameter
};

struct JointReport {
  double weight = 0;  // the sum over the ranks, in rank order
  std::vector<bool> used;
  std::vector<std::pair<int, std::size_t>> non_finite;  // (rank, parameter)
};

// Blocks. `mine.used` is as long on all ranks.
JointReport exchange(const BackwardReport& mine, const ProcessGroup& group);

}  // namespace lockstep
