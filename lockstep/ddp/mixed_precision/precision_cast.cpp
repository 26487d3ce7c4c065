#include "lockstep/ddp/mixed_precision/precision_cast.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace lockstep {

PrecisionCast::PrecisionCast(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& parameter : parameters) {
    const bool changes = parameter.is_floating_point() && parameter.scalar_type() != dtype;
    // A tensor that is registered under several names is one parameter.
    if (changes && !swaps(parameter)) swapped_.push_back({parameter, {}, {}});
  }
}

PrecisionCast::~PrecisionCast() { restore(); }

void PrecisionCast::lower() {
  if (lowered_) return;
  const at::NoGradGuard no_grad;
  for (Swapped& one : swapped_) one.low = one.parameter.detach().to(dtype_);
  lower_again();
}

void PrecisionCast::lower_for_evaluation() {
  if (lowered_) return;
  std::vector<at::Tensor> kept;
  for (const Swapped& one : swapped_) kept.push_back(one.low);
  lower();
  for (std::size_t i = 0; i < kept.size(); ++i) swapped_[i].low = std::move(kept[i]);
}

void PrecisionCast::lower_again() {
  if (lowered_) return;
  const at::NoGradGuard no_grad;
  for (Swapped& one : swapped_) {
    if (!one.low.defined()) continue;  // no forward yet
    one.own = one.parameter.detach();
    one.parameter.set_data(one.low);
  }
  lowered_ = true;
  if (on_change_) on_change_(true);
}

void PrecisionCast::restore() noexcept {
  if (!std::exchange(lowered_, false)) return;
  const at::NoGradGuard no_grad;
  for (Swapped& one : swapped_) {
    if (!one.own.defined()) continue;
    one.parameter.set_data(one.own);
    one.own.reset();
  }
  if (on_change_) on_change_(false);
}

void PrecisionCast::restore_gradients() {
  const at::NoGradGuard no_grad;
  for (const Swapped& one : swapped_) {
    const at::ScalarType own = (one.own.defined() ? one.own : one.parameter).scalar_type();
    at::Tensor& gradient = one.parameter.mutable_grad();
    if (gradient.defined() && gradient.scalar_type() != own) gradient = gradient.to(own);
  }
}

bool PrecisionCast::swaps(const at::Tensor& parameter) const {
  return std::any_of(swapped_.begin(), swapped_.end(),
                     [&](const Swapped& one) { return one.parameter.is_same(parameter); });
}

}  // namespace lockstep
