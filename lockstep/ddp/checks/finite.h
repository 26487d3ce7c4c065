// Whether a tensor holds NaN or Inf, in one pass over its memory. Pure.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Of a strided CPU tensor; true for types that know neither.
bool all_finite(const at::Tensor& tensor);

}  // namespace lockstep
