#include "lockstep/train/ddp/mixed_precision/precision_cast.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace lockstep::internal {

PrecisionCast::PrecisionCast(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& parameter : parameters) {
    const bool changes = parameter.is_floating_point() && parameter.scalar_type() != dtype;
    // A tensor that is registered under several names is one parameter.
    if (changes && !covers(parameter)) casts_.push_back({parameter, {}, {}});
  }
}

PrecisionCast::~PrecisionCast() { restore_master_weights(); }

void PrecisionCast::cast_for_forward() {
  if (is_cast()) return;
  const at::NoGradGuard no_grad;
  for (Cast& one : casts_) one.compute = one.parameter.detach().to(dtype_);
  cast_for_backward();
}

void PrecisionCast::cast_for_evaluation() {
  if (is_cast()) return;
  std::vector<at::Tensor> kept;
  for (const Cast& one : casts_) kept.push_back(one.compute);
  cast_for_forward();
  for (std::size_t i = 0; i < kept.size(); ++i) casts_[i].compute = std::move(kept[i]);
}

void PrecisionCast::cast_for_backward() {
  if (is_cast()) return;
  const at::NoGradGuard no_grad;
  for (Cast& one : casts_) {
    if (!one.compute.defined()) continue;  // no forward yet
    one.master = one.parameter.detach();
    one.parameter.set_data(one.compute);
  }
  holds_ = Holds::compute_copies;
  if (on_change_) on_change_(holds_);
}

void PrecisionCast::restore_master_weights() noexcept {
  if (std::exchange(holds_, Holds::master_weights) == Holds::master_weights) return;
  const at::NoGradGuard no_grad;
  for (Cast& one : casts_) {
    if (!one.master.defined()) continue;
    one.parameter.set_data(one.master);
    one.master.reset();
  }
  if (on_change_) on_change_(holds_);
}

void PrecisionCast::restore_gradient_dtype() {
  const at::NoGradGuard no_grad;
  for (const Cast& one : casts_) {
    const at::ScalarType own = (one.master.defined() ? one.master : one.parameter).scalar_type();
    at::Tensor& gradient = one.parameter.mutable_grad();
    if (gradient.defined() && gradient.scalar_type() != own) gradient = gradient.to(own);
  }
}

bool PrecisionCast::covers(const at::Tensor& parameter) const {
  return std::ranges::any_of(casts_, [&](const Cast& one) { return one.parameter.is_same(parameter); });
}

}  // namespace lockstep::internal
