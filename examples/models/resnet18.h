// ResNet18 with torchvision's names, shapes, order and initial distribution, so that its weight files load and the same
// seed gives the same weights. 11,181,642 parameters with 10 classes. [N, 3, H, W] -> [N, classes].
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace models {

struct ResNet18Impl : torch::nn::Module {
  explicit ResNet18Impl(std::int64_t classes = 1000);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet18);

}  // namespace models
