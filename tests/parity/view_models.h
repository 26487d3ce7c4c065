// Models whose layers take their weights from views of parameters, each with parameters of at least 64 KiB, which are
// reduced where they lie; the same names and shapes as in view_models.py. The weights come from there.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace parity {

// A convolution with normalised weights, whose direction is a view of a flat parameter, and a layer whose weight is the
// sum of two views: the gradients of their parameters are one memory.
struct WeightNormImpl : torch::nn::Module {
  WeightNormImpl();
  at::Tensor forward(const at::Tensor& x);
  at::Tensor flat, gain, left, right;
  torch::nn::Conv2d first;
  torch::nn::Linear last;
};
TORCH_MODULE(WeightNorm);

// Word embedding, position embedding and output projection are parts of one table.
struct TiedTableImpl : torch::nn::Module {
  TiedTableImpl();
  at::Tensor forward(const at::Tensor& tokens);
  at::Tensor table;
  torch::nn::Linear qkv, projection;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(TiedTable);

// The gate sends each sample to one of eight experts; those that got none on a rank have no gradient there, but the
// parameters that hold all of them have. A view of `offset` is added to what has its size, so that their gradients are
// one memory while the rest of backward reads it.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl();
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weights, biases, offset;
  torch::nn::Linear first, gate, last;
};
TORCH_MODULE(Experts);

}  // namespace parity
