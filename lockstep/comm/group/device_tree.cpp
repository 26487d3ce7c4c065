#include "lockstep/comm/group/device_tree.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/group/tensor_segments.h"

namespace lockstep::internal {
namespace {

std::optional<at::ScalarType> type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::f16: return at::kHalf;
    case DType::bf16: return at::kBFloat16;
    default: return std::nullopt;
  }
}

// Rows 0 and 1, 2 and 3, and so on. Reduced types are computed in float32 and rounded once, at each level.
at::Tensor reduce_pairs(const at::Tensor& rows, bool divides) {
  const at::Tensor pairs = rows.view({rows.size(0) / 2, 2, rows.size(1)});
  const bool is_reduced = at::isReducedFloatingType(rows.scalar_type());
  at::Tensor sum = pairs.select(1, 0).to(is_reduced ? at::kFloat : rows.scalar_type()) + pairs.select(1, 1);
  if (divides) sum.div_(2);
  return sum.to(rows.scalar_type());
}

std::byte* memory_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

}  // namespace

bool has_device_tree(const CommunicatorLibrary& library, OpKind kind, ReduceOp op, DType dtype, int ranks) {
  const bool is_known = kind == OpKind::all_reduce && (op == ReduceOp::sum || op == ReduceOp::avg) && type_of(dtype);
  return is_known && traits_of(kind).has_tree(ranks) && library.supports(OpKind::all_to_all, op, dtype) &&
         library.supports(OpKind::all_gather, op, dtype);
}

void all_reduce_in_tree(Communicator& communicator, const CarrierCall& call, int ranks, c10::Stream stream) {
  if (call.count == 0) return;
  const at::ScalarType type = type_of(call.dtype).value();
  const auto n = static_cast<std::size_t>(ranks);
  const auto count = static_cast<std::int64_t>(call.count);
  const std::size_t part = (call.count + n - 1) / n;
  const at::Tensor data = bytes_at(call.output, call.count * element_size(call.dtype), stream.device()).view(type);
  const at::Tensor parts = at::empty({static_cast<std::int64_t>(n * part)}, data.options());
  parts.narrow(0, 0, count).copy_(data);
  parts.slice(0, count).zero_();
  at::Tensor rows = at::empty({ranks, static_cast<std::int64_t>(part)}, data.options());
  const std::vector<std::size_t> counts(n, part);
  communicator.enqueue({.kind = OpKind::all_to_all,
                        .dtype = call.dtype,
                        .input = memory_of(parts),
                        .output = memory_of(rows),
                        .sent = counts,
                        .received = counts},
                       stream);
  while (rows.size(0) > 1) rows = reduce_pairs(rows, call.reduce == ReduceOp::avg);
  communicator.enqueue({.kind = OpKind::all_gather,
                        .dtype = call.dtype,
                        .count = part,
                        .input = memory_of(rows),
                        .output = memory_of(parts)},
                       stream);
  data.copy_(parts.narrow(0, 0, count));
}

}  // namespace lockstep::internal
