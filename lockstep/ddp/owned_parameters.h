// Whether a module still has the parameters that it had when it was wrapped. Asked in every forward, so it takes no
// memory. Belongs to one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

// parameters: what module.parameters() gave.
bool still_has(const torch::nn::Module& module, const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::internal
