// Batch is what a loader over labelled samples yields: `for (auto& [x, y] : loader(...))`. A value type.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

struct Batch {
  at::Tensor data;
  at::Tensor target;
};

}  // namespace lockstep
