#include "lockstep/comm/collective/op_kind.h"

namespace lockstep {

using namespace internal;

std::string_view to_string(OpKind kind) { return is_valid(kind) ? traits_of(kind).name : "unknown collective"; }

bool supports(OpKind kind, ReduceOp op, DType dtype) { return !traits_of(kind).reduces || supports(op, dtype); }

}  // namespace lockstep
