// Models that ask something of data parallel training; the same names and shapes as in odd_models.py. The weights come
// from there.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <map>
#include <string>
#include <tuple>

namespace parity {

struct ConvNormImpl : torch::nn::Module {
  ConvNormImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Linear fc;
};
TORCH_MODULE(ConvNorm);

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::LSTM lstm;
  torch::nn::Linear fc;
};
TORCH_MODULE(Recurrent);

struct SparseWordsImpl : torch::nn::Module {
  SparseWordsImpl();
  at::Tensor forward(const at::Tensor& tokens);
  torch::nn::Embedding words;
  torch::nn::Linear fc;
};
TORCH_MODULE(SparseWords);

struct HeadsImpl : torch::nn::Module {
  HeadsImpl();
  torch::nn::Linear body, left, right;
};

struct TupleHeadsImpl : HeadsImpl {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x);
};
TORCH_MODULE(TupleHeads);

struct NamedHeadsImpl : HeadsImpl {
  std::map<std::string, at::Tensor> forward(const at::Tensor& x);
};
TORCH_MODULE(NamedHeads);

struct SharedImpl : torch::nn::Module {
  SharedImpl();
  at::Tensor forward(const at::Tensor& tokens);
  torch::nn::Embedding words;
  torch::nn::Linear core;
};
TORCH_MODULE(Shared);

struct BranchesImpl : torch::nn::Module {
  BranchesImpl();
  at::Tensor forward(const at::Tensor& x, bool take_extra);
  torch::nn::Linear body, extra, head;
};
TORCH_MODULE(Branches);

struct FrozenImpl : torch::nn::Module {
  FrozenImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Frozen);

struct MixedTypesImpl : torch::nn::Module {
  MixedTypesImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first, precise, last;
};
TORCH_MODULE(MixedTypes);

struct ComplexImpl : torch::nn::Module {
  ComplexImpl();
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight, bias;
  torch::nn::Linear last;
};
TORCH_MODULE(Complex);

}  // namespace parity
