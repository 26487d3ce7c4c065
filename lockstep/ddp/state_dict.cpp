#include "lockstep/ddp/state_dict.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "module.";

// Module by module, as PyTorch's state_dict orders them.
void append_state(const torch::nn::Module& module, const std::string& prefix, NamedTensors& state) {
  for (const auto& item : module.named_parameters(false)) state.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(false)) state.emplace_back(prefix + item.key(), item.value());
  for (const auto& child : module.named_children()) append_state(*child.value(), prefix + child.key() + ".", state);
}

bool has_prefix(const NamedTensors& state) {
  return !state.empty() && std::ranges::all_of(state, [](const auto& item) { return item.first.starts_with(kPrefix); });
}

}  // namespace

NamedTensors state_dict_of(const torch::nn::Module& module, StateDictKeys keys) {
  NamedTensors state;
  append_state(module, keys == StateDictKeys::module_prefix ? std::string(kPrefix) : "", state);
  return state;
}

void load_state_dict(const torch::nn::Module& module, const NamedTensors& state) {
  std::map<std::string, at::Tensor> given;
  const std::size_t skip = has_prefix(state) ? kPrefix.size() : 0;
  for (const auto& [name, tensor] : state) given.emplace(name.substr(skip), tensor);
  std::string problems;
  const NamedTensors mine = state_dict_of(module, StateDictKeys::bare);
  for (const auto& [name, tensor] : mine) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems += "\n  missing: " + name;
    } else if (found->second.sizes() != tensor.sizes()) {
      problems += "\n  " + name + " has shape " + c10::str(found->second.sizes()) + " where the model has " +
                  c10::str(tensor.sizes());
    }
  }
  const std::map<std::string, at::Tensor> known(mine.begin(), mine.end());
  for (const auto& [name, tensor] : given) {
    if (!known.contains(name)) problems += "\n  unexpected: " + name;
  }
  if (!problems.empty()) {
    throw Error(ErrorKind::invalid_argument, "load_state_dict: the state does not fit the model:" + problems);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : mine) at::Tensor(tensor).copy_(given.at(name));
}

}  // namespace lockstep
