// What ranks tell each other at the end of a backward, in one collective, if the options ask for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
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

// Keeps its memory from call to call.
class ReportExchange {
 public:
  // Blocks. name: of the collective. `mine.used` is as long on all ranks. The result lasts until the next call.
  const JointReport& exchange(const BackwardReport& mine, const ProcessGroup& group, const CallOptions& call);

 private:
  at::Tensor sent_;
  at::Tensor told_;  // by all ranks
  JointReport joint_;
};

}  // namespace lockstep
