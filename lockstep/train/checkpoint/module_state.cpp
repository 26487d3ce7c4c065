#include "lockstep/train/checkpoint/module_state.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/overlap.h"
#include "lockstep/train/ddp/state_dict.h"

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

bool have_equal_names(const TensorsByName& left, const TensorsByName& right) {
  return std::ranges::equal(left, right, {}, &TensorsByName::value_type::first, &TensorsByName::value_type::first);
}

// Takes the wrapper's name off the side that has it, unless it is the name of a child on both.
void unwrap(TensorsByName& stored, TensorsByName& wanted) {
  if (have_equal_names(stored, wanted)) return;
  const TensorsByName bare_stored = is_wrapped(stored) ? strip_prefix(stored, kWrapper) : stored;
  const TensorsByName bare_wanted = is_wrapped(wanted) ? strip_prefix(wanted, kWrapper) : wanted;
  const bool is_in_stored = is_wrapped(stored) && (!is_wrapped(wanted) || have_equal_names(bare_stored, wanted));
  const bool is_in_wanted = is_wrapped(wanted) && (!is_wrapped(stored) || have_equal_names(stored, bare_wanted));
  if (is_in_stored == is_in_wanted) return;
  log_info(fmt::format("loading a module: the prefix '{}' of all names in the {} is ignored", kWrapper,
                       is_in_stored ? "checkpoint" : "module"));
  (is_in_stored ? stored : wanted) = is_in_stored ? bare_stored : bare_wanted;
}

}  // namespace

void add_module(Checkpoint& checkpoint, const torch::nn::Module& module, std::string_view prefix) {
  for (auto& [name, tensor] : tensors_of(module)) {
    checkpoint.tensors.insert_or_assign(std::string(prefix) + name, tensor.detach());
  }
}

void internal::require_own_elements(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !overlaps_itself(tensor)) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("checkpoint: elements of tensor '{}' share memory, as in an expanded tensor, so nothing can "
                          "be loaded into it; replace it in the module by its contiguous() or clone()",
                          name));
}

std::function<void()> internal::checked_load(const Checkpoint& checkpoint, torch::nn::Module& module,
                                             std::string_view prefix) {
  TensorsByName stored = tensors_below(checkpoint, prefix);
  TensorsByName wanted = tensors_of(module);
  for (const auto& [name, tensor] : wanted) require_own_elements(std::string(prefix) + name, tensor);
  unwrap(stored, wanted);
  return [copy = checked_copy_by_name(
              std::move(stored), std::move(wanted), Types::equal, "checkpoint",
              fmt::format("the checkpoint's '{}' does not fit the module, which is unchanged:", prefix))] {
    const c10::InferenceMode inference_mode;  // in which any tensor can be written
    copy();
  };
}

void load_module(const Checkpoint& checkpoint, torch::nn::Module& module, std::string_view prefix) {
  checked_load(checkpoint, module, prefix)();
}

}  // namespace lockstep
