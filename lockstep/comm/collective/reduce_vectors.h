// What reduce_rows does with vector instructions: all types but the complex ones. Thread-safe.
#pragma once

#include "lockstep/comm/collective/reduce.h"

namespace lockstep::internal {

// As reduce_rows.
void reduce_vectors(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs, std::size_t count,
                    DType dtype, ReduceOp op, int divisor);

}  // namespace lockstep::internal
