#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>

namespace lockstep::internal {

const SyncBatchNormTag* tag_among_hooks(const at::Tensor& running_mean) {
  if (!running_mean.defined() || torch::autograd::impl::get_autograd_meta(running_mean) == nullptr) return nullptr;
  for (const auto& hook : torch::autograd::impl::hooks(running_mean)) {
    if (const auto* tag = dynamic_cast<const SyncBatchNormTag*>(hook.get())) return tag;
  }
  return nullptr;
}

const SyncBatchNormTag* sync_batch_norm_tag_of(const torch::nn::Module& module) {
  if (const auto* layer = dynamic_cast<const SyncBatchNormTag*>(&module)) return layer;
  if (const auto* norm = module.as<torch::nn::BatchNorm1d>()) return tag_among_hooks(norm->running_mean);
  if (const auto* norm = module.as<torch::nn::BatchNorm2d>()) return tag_among_hooks(norm->running_mean);
  if (const auto* norm = module.as<torch::nn::BatchNorm3d>()) return tag_among_hooks(norm->running_mean);
  return nullptr;
}

void place_sync_batch_norms(const torch::nn::Module& model, std::uint64_t wrapper) {
  for (const auto& item : model.named_modules()) {
    const SyncBatchNormTag* layer = sync_batch_norm_tag_of(*item.value());
    if (layer != nullptr) layer->set_place({.name = "'" + item.key() + "'", .wrapper = wrapper});
  }
}

std::string label_of(std::string_view what, const SyncBatchNormTag::Place& place) {
  std::string label(what);
  if (!place.name.empty()) label += " of " + place.name + " in wrapper";
  return label;
}

}  // namespace lockstep::internal
