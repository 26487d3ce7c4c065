// Copies one rank's values into the same tensors of all ranks, as often as it is asked to. Any types and devices; one
// collective, whatever their number.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "lockstep/group/process_group.h"

namespace lockstep {

class ValueBroadcast {
 public:
  explicit ValueBroadcast(std::vector<at::Tensor> tensors);
  // Blocks; fails as ProcessGroup::broadcast.
  void run(int root, const ProcessGroup& group, std::string_view name);

 private:
  const std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> bytes_;  // views of the tensors, or of a copy of one whose memory is not its values
};

}  // namespace lockstep
