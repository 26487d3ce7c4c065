#include "lockstep/train/nn/convert_sync_batchnorm.h"

#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/lockstep_mode/shard_exchange.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"
#include "lockstep/train/nn/sync_batch_norm.h"

namespace lockstep {

using namespace internal;

namespace {

enum class Statistics { tracked, untracked };

// Lies among the gradient hooks of a running mean, which has no gradient: so it is never called, and lives exactly as
// long as the tensor.
struct Tag final : torch::autograd::FunctionPreHook, SyncBatchNormTag {
  Tag(ProcessGroup among, std::weak_ptr<const torch::nn::Module> tagged, Statistics kind)
      : module(std::move(tagged)), statistics(kind), group_(std::move(among)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
  const ProcessGroup& group() const override { return group_; }

  const std::weak_ptr<const torch::nn::Module> module;
  const Statistics statistics;

 private:
  const ProcessGroup group_;
};

template <class BatchNorm>
void attach_tag(BatchNorm& module, const ProcessGroup& group) {
  const bool tracks = module.options.track_running_stats();
  // An untracked module passes these members, too; its registered buffers stay undefined.
  if (!tracks) module.running_mean = module.running_var = at::empty({0});
  torch::autograd::impl::materialize_autograd_meta(module.running_mean);
  auto& hooks = torch::autograd::impl::hooks(module.running_mean);
  std::erase_if(hooks, [](const auto& hook) { return dynamic_cast<const Tag*>(hook.get()) != nullptr; });
  hooks.push_back(
      std::make_unique<Tag>(group, module.weak_from_this(), tracks ? Statistics::tracked : Statistics::untracked));
}

// Calls `use` with the module in its own type, if it is a batch norm.
template <class Module, class Use>
void if_batch_norm(Module& module, const Use& use) {
  if (auto* of_1d = module.template as<torch::nn::BatchNorm1d>()) use(*of_1d);
  if (auto* of_2d = module.template as<torch::nn::BatchNorm2d>()) use(*of_2d);
  if (auto* of_3d = module.template as<torch::nn::BatchNorm3d>()) use(*of_3d);
}

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  const auto* tag = running_mean ? dynamic_cast<const Tag*>(tag_among_hooks(*running_mean)) : nullptr;
  if (tag == nullptr) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  const bool tracked = tag->statistics == Statistics::tracked;
  const OptionalTensor mean = tracked ? running_mean : OptionalTensor();
  const OptionalTensor variance = tracked ? running_var : OptionalTensor();
  // An untracked module uses the statistics of its batch in evaluation, too.
  const auto module = tag->module.lock();
  const bool is_local = !training || (module != nullptr && !module->is_training());
  if (is_local || (tag->group().size() == 1 && ShardExchange::current() == nullptr)) {
    return at::native::batch_norm(input, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled);
  }
  return sync_batch_norm(input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), mean.value_or(at::Tensor()),
                         variance.value_or(at::Tensor()), momentum, eps, tag->group(), tag);
}

// The operator is composite: without these entries a call goes straight to at::native::batch_norm. In inference mode
// tensors have no autograd key.
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, CPU, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("batch_norm", &batch_norm); }

}  // namespace

int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& parameter : module.named_parameters()) {
    if (!GradientHook::watches(parameter.value())) continue;
    throw Error(
        ErrorKind::invalid_argument,
        "convert_sync_batchnorm: parameter " + parameter.key() +
            " is wrapped in a DistributedDataParallel already. The right order is: convert_sync_batchnorm(model, "
            "group), move the model to its device, then DistributedDataParallel(model, group)");
  }
  std::set<const torch::nn::Module*> converted;
  module.apply([&](torch::nn::Module& part) {
    if_batch_norm(part, [&](auto& batch_norm) {
      if (converted.insert(&part).second) attach_tag(batch_norm, group);
    });
  });
  return static_cast<int>(converted.size());
}

bool is_sync_batchnorm(const torch::nn::Module& module) { return sync_batch_norm_tag_of(module) != nullptr; }

}  // namespace lockstep
