// Which gradients are reduced together. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep::internal {

struct PlannedParameter {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  int device = 0;        // buckets never mix devices
  bool sparse = false;   // has a separate bucket
  bool delayed = false;  // belongs to the last buckets, which hold such ones only and have no cap
};

// Buckets of indices into `parameters`, to be reduced in this order. `order`: all indices, as their gradients are
// expected to become ready. A bucket is closed when it has reached its cap: caps[k] for bucket k, the last cap for all
// further ones. A cap of 0 gives every parameter its own bucket. REQUIRES: caps is not empty.
std::vector<std::vector<std::size_t>> plan_buckets(std::span<const PlannedParameter> parameters,
                                                   std::span<const std::size_t> order,
                                                   std::span<const std::size_t> caps);

// The order before any is known: backward begins at the model's end.
std::vector<std::size_t> reversed_order(std::size_t parameters);

}  // namespace lockstep::internal
