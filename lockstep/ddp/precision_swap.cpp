#include "lockstep/ddp/precision_swap.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace lockstep {

PrecisionSwap::PrecisionSwap(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.is_floating_point() && parameter.scalar_type() != dtype) swapped_.push_back({parameter, {}});
  }
}

PrecisionSwap::~PrecisionSwap() { restore(); }

void PrecisionSwap::lower() {
  restore();
  const at::NoGradGuard no_grad;
  for (Swapped& one : swapped_) {
    one.own = one.parameter.detach();
    one.parameter.set_data(one.own.to(dtype_));
  }
  lowered_ = true;
}

void PrecisionSwap::restore() {
  if (!std::exchange(lowered_, false)) return;
  const at::NoGradGuard no_grad;
  for (Swapped& one : swapped_) {
    one.parameter.set_data(one.own);
    one.own.reset();
    at::Tensor& gradient = one.parameter.mutable_grad();
    if (gradient.defined() && gradient.scalar_type() != one.parameter.scalar_type()) {
      gradient = gradient.to(one.parameter.scalar_type());
    }
  }
}

}  // namespace lockstep
