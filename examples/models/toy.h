// Linear(10, 10), ReLU, Linear(10, 5): 165 parameters, small enough to check by hand. [N, 10] -> [N, 5].
#pragma once

#include <torch/nn/modules/linear.h>

namespace models {

struct ToyImpl : torch::nn::Module {
  ToyImpl();
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Linear net1, net2;
};
TORCH_MODULE(Toy);

}  // namespace models
