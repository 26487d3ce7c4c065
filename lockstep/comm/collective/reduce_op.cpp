#include "lockstep/comm/collective/reduce_op.h"

#include <cstddef>
#include <iterator>

namespace lockstep {

std::string_view to_string(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown reduction";
}

bool supports(ReduceOp op, DType dtype) {
  if (dtype == DType::opaque) return false;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product: return true;
    case ReduceOp::avg: return is_floating_point(dtype) || is_complex(dtype);
    case ReduceOp::min:
    case ReduceOp::max: return !is_complex(dtype);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: return !is_floating_point(dtype) && !is_complex(dtype);
  }
  return false;
}

}  // namespace lockstep
