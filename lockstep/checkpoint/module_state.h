// The parameters and buffers of a module, to and from a checkpoint. module -> "model.<name>" -> module.
// Does not block. Loading is strict and all or nothing: Error{invalid_argument} lists everything that is missing,
// unexpected, or of another shape or type, and then the module is unchanged.
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/checkpoint/checkpoint.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// The checkpoint then refers to the module's own memory: save it before training goes on.
void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix = "model.");

// If exactly one of the two sides has "module." before all names, as a wrapped model has in PyTorch, that is ignored
// and logged.
void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix = "model.");

namespace internal {

// As load_module(), but so far it only checks: what it returns then changes the module.
std::function<void()> checked_load(const Checkpoint& checkpoint, torch::nn::Module& module,
                                   std::string_view prefix = "model.");

}  // namespace internal
}  // namespace lockstep
