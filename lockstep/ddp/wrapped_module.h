// What a DistributedDataParallel makes of its options and its module, before any rank hears of it.
// module, options -> WrappedModule -> comparison, broadcast, hooks. Pure, but for the Error{invalid_argument} that
// names what does not go together.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "lockstep/ddp/checks/model_comparison.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/trained_parameter.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

struct WrappedModule {
  // The module's own tensors, without those that DdpOptions::ignored names.
  NamedTensors parameters;
  NamedTensors buffers;
  TrainedParameters trained;  // the parameters that require gradients, each once
  // Where inputs have to be, if DdpOptions say that they are moved.
  std::optional<at::Device> input_device;
};

WrappedModule wrapped(const torch::nn::Module& module, const DdpOptions& options);

NamedTensors named_parameters_of(const torch::nn::Module& module);
NamedTensors named_buffers_of(const torch::nn::Module& module);

}  // namespace lockstep::internal
