// The operations of reductions, and their order of addition. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor };  // avg: the sum by the ranks
std::string_view to_string(ReduceOp op);                                              // "sum"

// The order in which a reduction takes the ranks' operands. ranks: ((x0 op x1) op x2) ... tree: (x0 op x1) op (x2 op
// x3), and so on upwards, for a power of two of ranks; every pair's result is rounded to the element type, and avg
// halves it. So operands that were already reduced in pairs give the bits of more ranks with one operand each.
enum class Order : std::uint8_t { ranks, tree };

// Whether a reduction can be computed for elements of a type: avg for floating and complex ones, min and max for those
// that have an order, band, bor and bxor for integers and bool. For bool sum means "or" and product means "and".
bool supports(ReduceOp op, DType dtype);

}  // namespace lockstep
