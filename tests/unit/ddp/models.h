// Models and values for tests of data parallel training with ranks that are threads.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <vector>

#include "tests/support/local_groups.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {

// Where this thread's tensors lie: see test_device.h.
inline at::Tensor here(const at::Tensor& tensor) { return tensor.to(test_device()); }

// Moves a module there. REQUIRES: nothing has hooked its parameters.
inline void move_here(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) move_to(parameter, test_device());
  for (const auto& buffer : module.buffers()) move_to(buffer, test_device());
}

// Linear-BatchNorm-ReLU-Linear, wide enough that its weights are reduced where they lie.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int width = 256) {
    first = register_module("first", torch::nn::Linear(20, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    last = register_module("last", torch::nn::Linear(width, 5));
    move_here(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(middle->forward(at::relu(norm->forward(first->forward(x)))));
  }
  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  int answer = 42;
};
TORCH_MODULE(Net);

// Two heads of which one may be left out.
struct ForkedImpl : torch::nn::Module {
  ForkedImpl() {
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
    move_here(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    return both ? left->forward(x) + right->forward(x) : left->forward(x);
  }
  torch::nn::Linear left = nullptr, right = nullptr;
};
TORCH_MODULE(Forked);

// torch's generator is one for all threads, so inputs and weights come from arithmetic.
inline at::Tensor wave(at::IntArrayRef sizes, double shift) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return here((at::sin(at::arange(count, at::kFloat) * 0.37 + shift) * 0.1).reshape(sizes));
}

// Moves the module to this thread's device, too.
template <class Module>
void set_weights(const Module& module, double shift) {
  const at::NoGradGuard no_grad;
  move_here(*module);
  for (auto& parameter : module->parameters()) parameter.copy_(wave(parameter.sizes(), shift += 1));
}

inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad().clone());
  return gradients;
}

inline bool same_on_all_ranks(const ProcessGroup& group, const at::Tensor& tensor) {
  const auto all = group.all_gather(tensor.detach());
  return std::all_of(all.begin(), all.end(), [&](const at::Tensor& other) { return at::equal(other, all[0]); });
}

}  // namespace lockstep::testing
