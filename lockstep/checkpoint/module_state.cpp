#include "lockstep/checkpoint/module_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kWrapper = "module.";

// Parameters and buffers share one set of names, as in PyTorch's state_dict().
Tensors tensors_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) tensors.emplace(item.key(), item.value());
  }
  return tensors;
}

Tensors tensors_below(const Checkpoint& checkpoint, std::string_view prefix) {
  Tensors tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with(prefix)) tensors.emplace(name.substr(prefix.size()), tensor);
  }
  return tensors;
}

bool is_wrapped(const Tensors& tensors) {
  return !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const auto& item) { return item.first.starts_with(kWrapper); });
}

std::string type_and_shape(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes().vec());
}

std::string differences(const Tensors& stored, const Tensors& wanted) {
  std::string text;
  for (const auto& [name, tensor] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      text += fmt::format("\n  missing in the checkpoint: {} ({})", name, type_and_shape(tensor));
    } else if (found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      text += fmt::format("\n  different: {} is {} in the checkpoint, {} in the module", name,
                          type_and_shape(found->second), type_and_shape(tensor));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (!wanted.contains(name)) {
      text += fmt::format("\n  unexpected in the checkpoint: {} ({})", name, type_and_shape(tensor));
    }
  }
  return text;
}

}  // namespace

void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix) {
  for (auto& [name, tensor] : tensors_of(module)) {
    checkpoint.tensors.insert_or_assign(std::string(prefix) + name, tensor.detach());
  }
}

void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix) {
  Tensors stored = tensors_below(checkpoint, prefix);
  Tensors wanted = tensors_of(module);
  if (is_wrapped(stored) != is_wrapped(wanted)) {
    log_info(fmt::format("loading a module: '{}' before all names in the {} is ignored", kWrapper,
                         is_wrapped(stored) ? "checkpoint" : "module"));
    stored = strip_prefix(stored, kWrapper);
    wanted = strip_prefix(wanted, kWrapper);
  }
  const std::string problems = differences(stored, wanted);
  if (!problems.empty()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the checkpoint's '{}' does not fit the module, which is unchanged:{}", prefix, problems));
  }
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : wanted) tensor.copy_(stored.at(name));
}

}  // namespace lockstep
