// Whether a tensor holds neither NaN nor Inf. Pure.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::internal {

// On any device; true for types that know neither. Reads the tensor once. REQUIRES: dense.
bool all_finite(const at::Tensor& tensor);

}  // namespace lockstep::internal
