#include "lockstep/train/ddp/owned_parameters.h"

#include <torch/nn/cloneable.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep::internal {
namespace {

struct Parts;

}  // namespace
}  // namespace lockstep::internal

// Only friends can access Module's lists: its public functions return copies, of which a large model would have a
// thousand in each forward.
template <>
class torch::nn::Cloneable<lockstep::internal::Parts> {
 public:
  static const auto& parameters_of(const Module& module) { return module.parameters_; }
  static const auto& children_of(const Module& module) { return module.children_; }
};

namespace lockstep::internal {
namespace {

using Access = torch::nn::Cloneable<Parts>;

// In the order of parameters(). next: of those that are expected.
bool has_next(const torch::nn::Module& module, const std::vector<at::Tensor>& parameters, std::size_t& next) {
  for (const auto& item : Access::parameters_of(module)) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined()) continue;
    if (next == parameters.size() || !parameter.is_same(parameters[next++])) return false;
  }
  for (const auto& item : Access::children_of(module)) {
    if (!has_next(*item.value(), parameters, next)) return false;
  }
  return true;
}

}  // namespace

OwnedParameters::OwnedParameters(const torch::nn::Module& module, NamedTensors compared)
    : module_(module), compared_(std::move(compared)), known_(module.parameters()) {
  for (const auto& [name, parameter] : compared_) shapes_.push_back(parameter.sizes().vec());
  std::ranges::copy_if(compared_, std::back_inserter(frozen_),
                       [](const auto& one) { return !one.second.requires_grad(); });
}

void OwnedParameters::check(const ProcessGroup& group) const {
  for (const auto& [name, parameter] : frozen_) {
    if (parameter.requires_grad()) throw_on_all_ranks(group, unfrozen_parameter_error(group.rank(), name));
  }
  for (std::size_t i = 0; i < compared_.size(); ++i) {
    const auto& [name, parameter] = compared_[i];
    if (parameter.sizes() == shapes_[i]) continue;
    throw_on_all_ranks(group, resized_parameter_error(group.rank(), name, c10::str(at::IntArrayRef(shapes_[i])),
                                                      c10::str(parameter.sizes())));
  }
  std::size_t next = 0;
  if (has_next(module_, known_, next) && next == known_.size()) return;
  for (const auto& item : module_.named_parameters()) {
    const bool is_known =
        std::ranges::any_of(known_, [&](const at::Tensor& known) { return known.is_same(item.value()); });
    if (!is_known) throw_on_all_ranks(group, foreign_parameter_error(group.rank(), item.key()));
  }
}

}  // namespace lockstep::internal
