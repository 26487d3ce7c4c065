#include "lockstep/train/ddp/model_hooks.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal {

ModelHooks::ModelHooks(const TrainedParameters& parameters, std::shared_ptr<PrecisionCast> cast,
                       std::function<void(std::size_t, const at::Tensor&)> arrived)
    : parameters_(parameters), cast_(std::move(cast)) {
  const auto hook = [&](std::size_t i) {
    return GradientHook(parameters_[i].tensor, [arrived, i](const at::Tensor& added) { arrived(i, added); });
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) hooks_.push_back(hook(i));
  if (cast_ == nullptr) return;
  cast_->cast_for_forward();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    cast_hooks_.push_back(cast_->covers(parameters_[i].tensor) ? std::optional(hook(i)) : std::nullopt);
  }
  cast_->on_change([this](PrecisionCast::Holds now) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!cast_hooks_[i]) continue;
      (now == PrecisionCast::Holds::compute_copies ? *cast_hooks_[i] : hooks_[i]).attach(parameters_[i].tensor);
    }
  });
  cast_->restore_master_weights();
}

ModelHooks::~ModelHooks() {
  if (cast_ != nullptr) cast_->on_change(nullptr);
}

void ModelHooks::refuse_as_inputs(const std::function<Error(const std::string&)>& error) {
  for (std::size_t i = 0; i < cast_hooks_.size(); ++i) {
    if (cast_hooks_[i]) hooks_[i].refuse_as_input(error(parameters_[i].name));
  }
}

void ModelHooks::scale_gradients(const std::function<double()>& factor) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // Such a hook also sees results of autograd::grad, which may run within a backward.
    scales_.emplace_back(parameters_[i].tensor, [this, factor, i] { return is_accumulated_now(i) ? factor() : 1.0; });
  }
}

bool ModelHooks::is_accumulated_now(std::size_t parameter) const {
  return hooks_[parameter].is_accumulated_now() ||
         (!cast_hooks_.empty() && cast_hooks_[parameter] && cast_hooks_[parameter]->is_accumulated_now());
}

bool ModelHooks::is_accumulated_now() const {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (is_accumulated_now(i)) return true;
  }
  return false;
}

std::optional<std::size_t> ModelHooks::find_again() const {
  if (cast_ != nullptr && cast_->is_cast()) return std::nullopt;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    if (hooks_[i].is_attached(parameter)) continue;
    if (!hooks_[i].fits(parameter)) return i;
    hooks_[i].attach(parameter);
  }
  return std::nullopt;
}

int ModelHooks::places_in_current_graph(std::size_t parameter) const {
  int places = hooks_[parameter].is_in_current_graph() ? 1 : 0;
  if (!cast_hooks_.empty() && cast_hooks_[parameter] && cast_hooks_[parameter]->is_in_current_graph()) ++places;
  return places;
}

}  // namespace lockstep::internal
