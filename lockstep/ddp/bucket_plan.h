// Which gradients are reduced together. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep {

struct PlannedParameter {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
};

// Buckets of indices into `parameters`, in the order in which they are expected to become ready: the reverse of
// registration, since backward begins at the model's end. A bucket holds one dtype and is closed when it has reached
// its cap: first_bytes for the first of all, cap_bytes for the others. A cap of 0 gives every parameter its own bucket.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<PlannedParameter>& parameters,
                                                   std::size_t first_bytes, std::size_t cap_bytes);

}  // namespace lockstep
