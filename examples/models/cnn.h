// Two convolutions and two linear layers for images like MNIST's: 206,922 parameters with 10 classes.
// [N, 1, 28, 28] -> [N, classes].
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace models {

struct CnnImpl : torch::nn::Module {
  explicit CnnImpl(std::int64_t classes = 10);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Cnn);

}  // namespace models
