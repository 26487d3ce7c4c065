// Linear layers with ReLU between them; by default 784-2048-2048-10, 5,824,522 parameters. [N, ...] -> [N,
// widths.back()].
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace models {

struct MlpImpl : torch::nn::Module {
  // `widths` from input to output, at least two.
  explicit MlpImpl(const std::vector<std::int64_t>& widths = {784, 2048, 2048, 10});
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Sequential layers;
};
TORCH_MODULE(Mlp);

}  // namespace models
