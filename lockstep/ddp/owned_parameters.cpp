#include "lockstep/ddp/owned_parameters.h"

#include <torch/nn/cloneable.h>

#include <cstddef>

namespace lockstep::internal {
namespace {

struct Parts;

}  // namespace
}  // namespace lockstep::internal

// Module's lists can be seen by its friends alone: what it shows everybody are copies, of which a large model would
// have a thousand in each forward.
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

bool still_has(const torch::nn::Module& module, const std::vector<at::Tensor>& parameters) {
  std::size_t next = 0;
  return has_next(module, parameters, next) && next == parameters.size();
}

}  // namespace lockstep::internal
