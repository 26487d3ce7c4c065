// Whether a tensor holds NaN or Inf. Pure.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// On any device; true for types that know neither. Reads the tensor once unless its sum overflows.
bool all_finite(const at::Tensor& tensor);

}  // namespace lockstep
