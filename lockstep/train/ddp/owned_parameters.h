// The parameters that a wrapper keeps equal on all ranks, and whether its module still has these and no others.
// module -> OwnedParameters -> the named error of a forward. Belongs to one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/checks/model_comparison.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

class OwnedParameters {
 public:
  // compared: those of the module that are not ignored.
  OwnedParameters(const torch::nn::Module& module, NamedTensors compared);

  const NamedTensors& compared() const { return compared_; }
  // Error{invalid_argument}, which ends the group, names a parameter that was registered, replaced or resized since, or
  // that is no longer frozen: each rank would train it alone. Asked in every forward, so it takes no memory.
  void check(const ProcessGroup& group) const;

 private:
  const torch::nn::Module& module_;
  const NamedTensors compared_;
  std::vector<std::vector<std::int64_t>> shapes_;  // of them
  NamedTensors frozen_;                            // of them
  std::vector<at::Tensor> known_;                  // all of the module
};

}  // namespace lockstep::internal
