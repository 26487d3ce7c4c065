// A small GPT over characters: learned positions, pre-norm blocks of causal self-attention and a GELU layer, nanoGPT's
// names, no tied weights. 1,829,376 parameters by default. int64 [N, T] -> logits [N, T, vocabulary].
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>

namespace models {

struct GptOptions {
  std::int64_t vocabulary = 65;
  std::int64_t context = 128;  // the longest T
  std::int64_t layers = 4;
  std::int64_t heads = 6;
  std::int64_t width = 192;  // a multiple of heads
  double dropout = 0;
};

struct GptTransformerImpl : torch::nn::Module {
  explicit GptTransformerImpl(const GptOptions& options);
  torch::Tensor forward(torch::Tensor tokens);

  double dropout;
  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(GptTransformer);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options = {});
  torch::Tensor forward(torch::Tensor tokens);

  GptTransformer transformer;
  torch::nn::Linear lm_head;
};
TORCH_MODULE(Gpt);

}  // namespace models
