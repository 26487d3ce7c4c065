// The parameters and buffers of a module, to and from a checkpoint. module -> "model.<name>" -> module.
// Does not block. Loading is strict and all or nothing: Error{invalid_argument} lists everything that is missing,
// unexpected, or of another shape or type, and tensors that share memory, such as tied weights, but have different
// values in the checkpoint; then the module is unchanged.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// The checkpoint then refers to the module's memory: save it before training continues.
void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix = "model.");

// If names do not match otherwise, the prefix "module." of all names on one side, as of a wrapped model in PyTorch, is
// ignored and logged. A buffer may be created in inference mode, and the call made in it.
void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix = "model.");

namespace internal {

// Error{invalid_argument} for a tensor that cannot be loaded into because its elements share memory.
void require_own_elements(const std::string& name, const at::Tensor& tensor);

// As load_module(), but it only checks: the returned function then changes the module.
std::function<void()> checked_load(const Checkpoint& checkpoint, torch::nn::Module& module,
                                   std::string_view prefix = "model.");

}  // namespace internal
}  // namespace lockstep
