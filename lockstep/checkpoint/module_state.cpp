#include "lockstep/checkpoint/module_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/ddp/state_dict.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::string_view kWrapper = "module.";

// Parameters and buffers share one set of names, as in PyTorch's state_dict().
TensorsByName tensors_of(const torch::nn::Module& module) {
  TensorsByName tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) tensors.emplace(item.key(), item.value());
  }
  return tensors;
}

TensorsByName tensors_below(const Checkpoint& checkpoint, std::string_view prefix) {
  TensorsByName tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with(prefix)) tensors.emplace(name.substr(prefix.size()), tensor);
  }
  return tensors;
}

bool is_wrapped(const TensorsByName& tensors) {
  return !tensors.empty() &&
         std::ranges::all_of(tensors, [](const auto& item) { return item.first.starts_with(kWrapper); });
}

}  // namespace

void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix) {
  for (auto& [name, tensor] : tensors_of(module)) {
    checkpoint.tensors.insert_or_assign(std::string(prefix) + name, tensor.detach());
  }
}

std::function<void()> internal::checked_load(const Checkpoint& checkpoint, torch::nn::Module& module,
                                             std::string_view prefix) {
  TensorsByName stored = tensors_below(checkpoint, prefix);
  TensorsByName wanted = tensors_of(module);
  if (is_wrapped(stored) != is_wrapped(wanted)) {
    log_info(fmt::format("loading a module: '{}' before all names in the {} is ignored", kWrapper,
                         is_wrapped(stored) ? "checkpoint" : "module"));
    stored = strip_prefix(stored, kWrapper);
    wanted = strip_prefix(wanted, kWrapper);
  }
  return checked_copy_by_name(
      std::move(stored), std::move(wanted), Types::equal, "checkpoint",
      fmt::format("the checkpoint's '{}' does not fit the module, which is unchanged:", prefix));
}

void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix) {
  checked_load(checkpoint, module, prefix)();
}

}  // namespace lockstep
