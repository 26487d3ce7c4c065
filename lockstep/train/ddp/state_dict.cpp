#include "lockstep/train/ddp/state_dict.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/ddp/shared_tensors.h"

namespace lockstep {

using namespace internal;

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

std::string type_and_shape(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes().vec());
}

// Places where one value would be lost, since two names share memory. REQUIRES: all names are on both sides.
std::string different_shared_values(const TensorsByName& stored, const TensorsByName& into, const std::string& source) {
  std::string problems;
  for (const auto& [one, other] : shared_names(into)) {
    if (can_hold_both(into.at(one), stored.at(one), into.at(other), stored.at(other))) continue;
    problems += fmt::format(
        "\n  {} and {} share memory in the module, and have different values in the {}: give each "
        "its own tensor, or store equal values",
        one, other, source);
  }
  return problems;
}

}  // namespace

NamedTensors state_dict_of(const torch::nn::Module& module, StateDictKeys keys) {
  NamedTensors state;
  append_state(module, keys == StateDictKeys::module_prefix ? std::string(kPrefix) : "", state);
  return state;
}

void load_state_dict(const torch::nn::Module& module, const NamedTensors& state) {
  TensorsByName given, mine;
  for (const auto& [name, tensor] : state_dict_of(module, StateDictKeys::bare)) mine.emplace(name, tensor);
  // The module may have a child of that name.
  const bool fits = std::ranges::all_of(state, [&](const auto& item) { return mine.contains(item.first); });
  const std::size_t skip = !fits && has_prefix(state) ? kPrefix.size() : 0;
  for (const auto& [name, tensor] : state) given.emplace(name.substr(skip), tensor);
  copy_by_name(given, mine, Types::converted, "state", "load_state_dict: the state does not fit the model:");
}

std::function<void()> internal::checked_copy_by_name(TensorsByName stored, TensorsByName into, Types types,
                                                     const std::string& source, const std::string& problem) {
  std::string problems;
  for (const auto& [name, tensor] : into) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      problems += fmt::format("\n  missing from the {}: {} ({})", source, name, type_and_shape(tensor));
    } else if (found->second.sizes() != tensor.sizes() ||
               (types == Types::equal && found->second.scalar_type() != tensor.scalar_type())) {
      problems += fmt::format("\n  different: {} is {} in the {}, {} in the module", name,
                              type_and_shape(found->second), source, type_and_shape(tensor));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (into.contains(name)) continue;
    problems += fmt::format("\n  unexpected in the {}: {} ({})", source, name, type_and_shape(tensor));
  }
  if (problems.empty()) problems = different_shared_values(stored, into, source);
  if (!problems.empty()) throw Error(ErrorKind::invalid_argument, problem + problems);
  return [stored = std::move(stored), into = std::move(into)] {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : into) tensor.copy_(stored.at(name));
  };
}

void internal::copy_by_name(const TensorsByName& stored, const TensorsByName& into, Types types,
                            const std::string& source, const std::string& problem) {
  checked_copy_by_name(stored, into, types, source, problem)();
}

}  // namespace lockstep
