// The parameters and buffers of a module, to and from a checkpoint. module -> "model.<name>" -> module.
// Does not block. Loading is strict and all or nothing: Error{invalid_argument} lists everything that is missing,
// unexpected, or of another shape or type, and tensors that share memory, as tied weights, for which the checkpoint has
// different values; then the module is unchanged.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// The checkpoint then refers to the module's own memory: save it before training goes on.
void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix = "model.");

// Where names do not fit otherwise, "module." before all names of one side, as a wrapped model has in PyTorch, is
// ignored and logged. A buffer may be made in inference mode, and so may the call.
void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix = "model.");

namespace internal {

// Error{invalid_argument} for a tensor that no value can be loaded into, since its elements share memory.
void require_own_elements(const std::string& name, const at::Tensor& tensor);

// As load_module(), but so far it only checks: what it returns then changes the module.
std::function<void()> checked_load(const Checkpoint& checkpoint, torch::nn::Module& module,
                                   std::string_view prefix = "model.");

}  // namespace internal
}  // namespace lockstep
