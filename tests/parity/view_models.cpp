#include "tests/parity/view_models.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace parity {
namespace {

constexpr std::int64_t kWords = 500, kPositions = 16, kWidth = 32, kHeads = 2;
constexpr std::int64_t kExperts = 8, kExpertWidth = 48, kSamples = 8, kPlaces = 48;

}  // namespace

WeightNormImpl::WeightNormImpl()
    : flat(register_parameter("flat", at::zeros({64 * 32 * 3 * 3}))),
      gain(register_parameter("gain", at::zeros({64, 1, 1, 1}))),
      left(register_parameter("left", at::zeros({32 * 576}))),
      right(register_parameter("right", at::zeros({32 * 576}))),
      first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3)))),
      last(register_module("last", torch::nn::Linear(32, 10))) {}

at::Tensor WeightNormImpl::forward(const at::Tensor& x) {
  const at::Tensor direction = flat.view({64, 32, 3, 3});
  const at::Tensor weight = gain.mul(direction).div(direction.square().sum({1, 2, 3}, true).sqrt());
  const at::Tensor features = at::conv2d(first(x).relu(), weight, {}, 3).relu();
  const at::Tensor sum = left.view({32, 576}).add(right.view({32, 576}));
  return last(at::linear(features.flatten(1), sum).tanh());
}

TiedTableImpl::TiedTableImpl()
    : table(register_parameter("table", at::zeros({kWords + kPositions, kWidth}))),
      qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
      projection(register_module("projection", torch::nn::Linear(kWidth, kWidth))),
      norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))) {}

at::Tensor TiedTableImpl::forward(const at::Tensor& tokens) {
  const auto n = tokens.size(0), t = tokens.size(1);
  const at::Tensor words = table.narrow(0, 0, kWords), positions = table.narrow(0, kWords, t);
  const at::Tensor x = at::embedding(words, tokens).add(positions);
  const auto parts = qkv(x).view({n, t, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
  return norm(x.add(projection(y.transpose(1, 2).reshape({n, t, kWidth})))).matmul(words.t());
}

ExpertsImpl::ExpertsImpl()
    : weights(register_parameter("weights", at::zeros({kExperts, kExpertWidth, kExpertWidth}))),
      biases(register_parameter("biases", at::zeros({kExperts, kExpertWidth}))),
      offset(register_parameter("offset", at::zeros({kSamples * kPlaces * kExpertWidth}))),
      first(register_module("first", torch::nn::Linear(6, kExpertWidth))),
      gate(register_module("gate", torch::nn::Linear(kExpertWidth, kExperts))),
      last(register_module("last", torch::nn::Linear(kExpertWidth, 5))) {}

at::Tensor ExpertsImpl::forward(const at::Tensor& x) {
  at::Tensor hidden = first(x);
  hidden = hidden.add(offset.view(hidden.sizes())).tanh();
  const at::Tensor shares = gate(hidden.select(1, 0)).softmax(1), choice = shares.argmax(1);
  at::Tensor out = at::zeros_like(hidden);
  for (std::int64_t expert = 0; expert < kExperts; ++expert) {
    const at::Tensor samples = choice.eq(expert).nonzero().flatten();
    if (samples.numel() == 0) continue;
    const at::Tensor own =
        hidden.index_select(0, samples).matmul(weights.select(0, expert)).add(biases.slice(0, expert, expert + 1));
    const at::Tensor share = shares.index_select(0, samples).select(1, expert).view({-1, 1, 1});
    out = out.index_add(0, samples, own.relu().mul(share));
  }
  return last(out.mean(1));
}

}  // namespace parity
