// A parameter whose gradient is averaged. A value; its tensor is the module's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lockstep::internal {

struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;   // its gradients are
  bool delayed = false;  // see DdpOptions::delay_all_reduce_named_params
};

using TrainedParameters = std::vector<TrainedParameter>;

}  // namespace lockstep::internal
