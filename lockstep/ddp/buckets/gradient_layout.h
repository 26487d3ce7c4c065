// Whether a gradient can be copied to a parameter's place as plain memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Whether the gradient's memory, read from front to back, has the parameter's elements in the parameter's order.
inline bool has_layout_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.is_non_overlapping_and_dense() && !gradient.is_conj() && !gradient.is_neg() &&
         gradient.scalar_type() == parameter.scalar_type() &&
         (gradient.strides() == parameter.strides() || (gradient.is_contiguous() && parameter.is_contiguous()));
}

}  // namespace lockstep
