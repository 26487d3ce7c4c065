#include "examples/models/cnn.h"

namespace models {
namespace {

torch::nn::Conv2d conv3x3(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

}  // namespace

CnnImpl::CnnImpl(std::int64_t classes)
    : conv1(register_module("conv1", conv3x3(1, 16))),
      conv2(register_module("conv2", conv3x3(16, 32))),
      fc1(register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128))),
      fc2(register_module("fc2", torch::nn::Linear(128, classes))) {}

torch::Tensor CnnImpl::forward(torch::Tensor x) {
  x = at::max_pool2d(conv1(x).relu(), 2);
  x = at::max_pool2d(conv2(x).relu(), 2);
  return fc2(fc1(x.flatten(1)).relu());
}

}  // namespace models
