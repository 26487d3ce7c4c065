// reduce_rows is the arithmetic of every reduction: element i of the result is ((in0[i] op in1[i]) op in2[i]) ...
// The result's bits depend on the values only: not on the CPU, on `count`, or on how rows are cut into calls. (The one
// exception is which NaN it is where several are possible.) Chooses vector instructions at run time. Thread-safe.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// Reduces `inputs.size()` rows of `count` elements and writes the result to every output; of no rows that is the
// operation's identity (0 for sum and avg, the largest value for min, and so on). A row is
// aligned to its element type. An output may be one of the inputs; otherwise rows do not overlap. float16 and bfloat16
// are accumulated in float32 and rounded once, to nearest even. Integers wrap. min and max give NaN if any value is
// NaN. avg adds and then divides by `divisor`, which other operations ignore. REQUIRES: supports(op, dtype).
void reduce_rows(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs, std::size_t count,
                 DType dtype, ReduceOp op, int divisor = 1);

// The part of reduce_rows that uses vector instructions: all types but the complex ones.
void reduce_vectors(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs, std::size_t count,
                    DType dtype, ReduceOp op, int divisor);

// Reduces all ranks' rows in the collective's order: what an engine does once it has them all.
void reduce_all(const Collective& collective, std::span<std::byte* const> outputs,
                std::span<const std::byte* const> inputs, std::size_t count);

// float16 or bfloat16 to float32 and back, rounded to nearest even. To widen rows, reduce them and narrow the result
// gives the bits of reduce_rows on the narrow ones.
void widen(const std::byte* from, float* to, std::size_t count, DType from_dtype);
void narrow(const float* from, std::byte* to, std::size_t count, DType to_dtype);

}  // namespace lockstep::internal
