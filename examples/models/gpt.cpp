#include "examples/models/gpt.h"

#include <torch/nn/init.h>

#include <cmath>

namespace models {
namespace {

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const GptOptions& options)
      : heads(options.heads),
        dropout(options.dropout),
        c_attn(register_module("c_attn", torch::nn::Linear(options.width, 3 * options.width))),
        c_proj(register_module("c_proj", torch::nn::Linear(options.width, options.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0), t = x.size(1), width = x.size(2);
    const auto qkv = c_attn(x).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                    is_training() ? dropout : 0, /*is_causal=*/true);
    return at::dropout(c_proj(y.transpose(1, 2).reshape({n, t, width})), dropout, is_training());
  }

  std::int64_t heads;
  double dropout;
  torch::nn::Linear c_attn, c_proj;
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(const GptOptions& options)
      : dropout(options.dropout),
        c_fc(register_module("c_fc", torch::nn::Linear(options.width, 4 * options.width))),
        c_proj(register_module("c_proj", torch::nn::Linear(4 * options.width, options.width))) {}

  torch::Tensor forward(torch::Tensor x) { return at::dropout(c_proj(at::gelu(c_fc(x))), dropout, is_training()); }

  double dropout;
  torch::nn::Linear c_fc, c_proj;
};
TORCH_MODULE(FeedForward);

torch::nn::LayerNorm layer_norm(const GptOptions& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width}));
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptOptions& options)
      : ln_1(register_module("ln_1", layer_norm(options))),
        attn(register_module("attn", Attention(options))),
        ln_2(register_module("ln_2", layer_norm(options))),
        mlp(register_module("mlp", FeedForward(options))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attn(ln_1(x));
    return x + mlp(ln_2(x));
  }

  torch::nn::LayerNorm ln_1;
  Attention attn;
  torch::nn::LayerNorm ln_2;
  FeedForward mlp;
};
TORCH_MODULE(Block);

}  // namespace

GptTransformerImpl::GptTransformerImpl(const GptOptions& options)
    : dropout(options.dropout),
      wte(register_module("wte", torch::nn::Embedding(options.vocabulary, options.width))),
      wpe(register_module("wpe", torch::nn::Embedding(options.context, options.width))),
      h(register_module("h", torch::nn::ModuleList())),
      ln_f(register_module("ln_f", layer_norm(options))) {
  for (std::int64_t i = 0; i < options.layers; ++i) h->push_back(Block(options));
}

torch::Tensor GptTransformerImpl::forward(torch::Tensor tokens) {
  const auto positions = at::arange(tokens.size(1), tokens.options());
  auto x = at::dropout(wte(tokens) + wpe(positions), dropout, is_training());
  for (const auto& block : *h) x = block->as<Block>()->forward(x);
  return ln_f(x);
}

GptImpl::GptImpl(const GptOptions& options)
    : transformer(register_module("transformer", GptTransformer(options))),
      lm_head(register_module(
          "lm_head", torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)))) {
  // GPT-2's: narrow everywhere, and narrower where a block adds to the residual stream, so that its variance does not
  // grow with depth.
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
  for (auto& item : named_parameters()) {
    const bool residual = item.key().ends_with("c_proj.weight");
    if (item.key().ends_with("bias")) {
      torch::nn::init::zeros_(item.value());
    } else if (item.value().dim() == 2) {
      torch::nn::init::normal_(item.value(), 0, residual ? residual_std : 0.02);
    }
  }
}

torch::Tensor GptImpl::forward(torch::Tensor tokens) { return lm_head(transformer(tokens)); }

}  // namespace models
