#include "tests/parity/odd_models.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

namespace parity {

ConvNormImpl::ConvNormImpl()
    : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3)))),
      bn1(register_module("bn1", torch::nn::BatchNorm2d(8))),
      conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2)))),
      bn2(register_module("bn2", torch::nn::BatchNorm2d(16))),
      fc(register_module("fc", torch::nn::Linear(16, 10))) {}

at::Tensor ConvNormImpl::forward(const at::Tensor& x) {
  const at::Tensor first = bn1(conv1(x)).relu();
  return fc(bn2(conv2(first)).relu().mean({2, 3}));
}

RecurrentImpl::RecurrentImpl()
    : lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 24).num_layers(2).batch_first(true)))),
      fc(register_module("fc", torch::nn::Linear(24, 5))) {}

at::Tensor RecurrentImpl::forward(const at::Tensor& x) { return fc(std::get<0>(lstm(x)).select(1, -1)); }

SparseWordsImpl::SparseWordsImpl()
    : words(register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 16).sparse(true)))),
      fc(register_module("fc", torch::nn::Linear(16, 5))) {}

at::Tensor SparseWordsImpl::forward(const at::Tensor& tokens) { return fc(words(tokens).mean(1)); }

HeadsImpl::HeadsImpl()
    : body(register_module("body", torch::nn::Linear(10, 16))),
      left(register_module("left", torch::nn::Linear(16, 5))),
      right(register_module("right", torch::nn::Linear(16, 5))) {}

std::tuple<at::Tensor, at::Tensor> TupleHeadsImpl::forward(const at::Tensor& x) {
  const at::Tensor shared = body(x).tanh();
  return {left(shared), right(shared)};
}

std::map<std::string, at::Tensor> NamedHeadsImpl::forward(const at::Tensor& x) {
  const at::Tensor shared = body(x).tanh();
  return {{"left", left(shared)}, {"right", right(shared)}};
}

SharedImpl::SharedImpl()
    : words(register_module("words", torch::nn::Embedding(20, 16))),
      core(register_module("core", torch::nn::Linear(16, 16))) {}

at::Tensor SharedImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = words(tokens);
  for (int i = 0; i < 3; ++i) x = x.add(core(x).tanh());
  return at::linear(x, words->weight);
}

BranchesImpl::BranchesImpl()
    : body(register_module("body", torch::nn::Linear(10, 16))),
      extra(register_module("extra", torch::nn::Linear(16, 16))),
      head(register_module("head", torch::nn::Linear(16, 5))) {}

at::Tensor BranchesImpl::forward(const at::Tensor& x, bool take_extra) {
  const at::Tensor hidden = body(x).relu();
  return head(take_extra ? hidden.add(extra(hidden).relu()) : hidden);
}

FrozenImpl::FrozenImpl()
    : first(register_module("first", torch::nn::Linear(10, 16))),
      norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))),
      last(register_module("last", torch::nn::Linear(16, 5))) {
  for (at::Tensor parameter : {first->weight, first->bias, norm->weight}) parameter.set_requires_grad(false);
}

at::Tensor FrozenImpl::forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }

MixedTypesImpl::MixedTypesImpl()
    : first(register_module("first", torch::nn::Linear(10, 16))),
      precise(register_module("precise", torch::nn::Linear(16, 16))),
      last(register_module("last", torch::nn::Linear(16, 5))) {
  precise->to(at::kDouble);
}

at::Tensor MixedTypesImpl::forward(const at::Tensor& x) {
  return last(precise(first(x).relu().to(at::kDouble)).tanh().to(at::kFloat));
}

ComplexImpl::ComplexImpl()
    : weight(register_parameter("weight", at::zeros({10, 8}, at::kComplexFloat))),
      bias(register_parameter("bias", at::zeros({8}, at::kComplexFloat))),
      last(register_module("last", torch::nn::Linear(16, 5))) {}

at::Tensor ComplexImpl::forward(const at::Tensor& x) {
  const at::Tensor product = x.to(at::kComplexFloat).mm(weight).add(bias);
  return last(at::view_as_real(product).flatten(1).tanh());
}

}  // namespace parity
