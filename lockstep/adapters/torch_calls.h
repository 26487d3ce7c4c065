// One CarrierCall as a call of one of libtorch's own process groups. Carriers over c10d -> here -> c10d.
// Starts the operation; it does not block. Throws what libtorch throws.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>

#include "lockstep/adapters/carrier.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Work> start_call(c10d::Backend& backend, const CarrierCall& call, at::Device device,
                                          std::chrono::milliseconds timeout);

// What libtorch's groups can reduce.
bool torch_reduces(ReduceOp op, DType dtype);

}  // namespace lockstep
