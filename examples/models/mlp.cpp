#include "examples/models/mlp.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace models {

MlpImpl::MlpImpl(const std::vector<std::int64_t>& widths) {
  TORCH_CHECK_VALUE(widths.size() >= 2, "Mlp needs an input and an output width");
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) layers->push_back(torch::nn::ReLU());
    layers->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  register_module("layers", layers);
}

torch::Tensor MlpImpl::forward(torch::Tensor x) { return layers->forward(x.flatten(1)); }

}  // namespace models
