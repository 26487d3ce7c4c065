// The result of a DistributedDataParallel's options and module, before it communicates.
// module, options -> WrappedModule -> comparison, broadcast, hooks. Pure, but for the Error{invalid_argument} that
// names the conflict.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lockstep/train/ddp/checks/model_comparison.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

struct WrappedModule {
  // The module's own tensors, without those that DdpOptions::ignored names.
  NamedTensors parameters;
  NamedTensors buffers;
  TrainedParameters trained;  // the parameters that require gradients, each once
  // The parameters that hold mixed precision's compute type during forward and backward. Those of layers with running
  // statistics do only if these have that type too: batch norm wants all of its own tensors in one type.
  std::vector<at::Tensor> cast;
  // Where inputs have to be, if DdpOptions say that they are moved.
  std::optional<at::Device> input_device;
};

WrappedModule wrapped(const torch::nn::Module& module, const DdpOptions& options);

// Error{invalid_argument} naming the layer if a forward changes a parameter by rows, which differ between ranks:
// Embedding and EmbeddingBag with max_norm. For groups of more than one.
void check_forward_changes_none(const torch::nn::Module& module, const DdpOptions& options);

NamedTensors named_parameters_of(const torch::nn::Module& module);
NamedTensors named_buffers_of(const torch::nn::Module& module);

}  // namespace lockstep::internal
