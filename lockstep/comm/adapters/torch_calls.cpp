#include "lockstep/comm/adapters/torch_calls.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <vector>

namespace lockstep::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Reduction {
  at::ScalarType type;
  c10d::ReduceOp::RedOpType op;
  std::int64_t numbers = 1;  // to an element: two in a complex one
};

c10d::ReduceOp::RedOpType operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return c10d::ReduceOp::SUM;
    case ReduceOp::avg: return c10d::ReduceOp::AVG;
    case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::band: return c10d::ReduceOp::BAND;
    case ReduceOp::bor: return c10d::ReduceOp::BOR;
    case ReduceOp::bxor: return c10d::ReduceOp::BXOR;
  }
  throw Error(ErrorKind::internal, "unknown reduction");
}

// Of bool, which is bytes of 0 and 1 to these libraries, sum means "or" and product "and".
c10d::ReduceOp::RedOpType operation_of_bool(ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::bor) return c10d::ReduceOp::MAX;
  if (op == ReduceOp::product || op == ReduceOp::band) return c10d::ReduceOp::MIN;
  return operation_of(op);
}

Reduction reduction_of(ReduceOp op, DType dtype) {
  const auto operation = operation_of(op);
  switch (dtype) {
    case DType::f32: return {at::kFloat, operation};
    case DType::f64: return {at::kDouble, operation};
    case DType::f16: return {at::kHalf, operation};
    case DType::bf16: return {at::kBFloat16, operation};
    case DType::i32: return {at::kInt, operation};
    case DType::i64: return {at::kLong, operation};
    case DType::u8: return {at::kByte, operation};
    case DType::i8: return {at::kChar, operation};
    case DType::boolean: return {at::kByte, operation_of_bool(op)};
    case DType::c64: return {at::kFloat, operation, 2};
    case DType::c128: return {at::kDouble, operation, 2};
    default: throw Error(ErrorKind::internal, "libtorch's groups cannot reduce " + std::string(to_string(dtype)));
  }
}

at::Tensor tensor_of(std::byte* data, std::size_t elements, at::ScalarType type, at::Device device) {
  return at::from_blob(data, {static_cast<std::int64_t>(elements)}, at::TensorOptions().dtype(type).device(device));
}

std::vector<std::int64_t> bytes_of(std::span<const std::size_t> elements, std::size_t element, std::size_t& sum) {
  std::vector<std::int64_t> bytes;
  for (const std::size_t each : elements) {
    bytes.push_back(static_cast<std::int64_t>(each * element));
    sum += each * element;
  }
  return bytes;
}

}  // namespace

std::chrono::milliseconds torch_timeout(Deadline deadline) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365);  // libtorch adds it to a time point
  const auto left = std::chrono::ceil<milliseconds>(std::min<Duration>(deadline.remaining(), kLongest));
  return std::max(left, milliseconds(1));
}

bool torch_reduces(ReduceOp op, DType dtype) {
  constexpr DType kLacking[] = {DType::i16, DType::u16, DType::u32, DType::u64, DType::opaque};
  if (std::ranges::find(kLacking, dtype) != std::end(kLacking)) return false;
  return !is_complex(dtype) || op == ReduceOp::sum || op == ReduceOp::avg;  // those go number by number
}

namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

template <class Options>
Options options_with(std::chrono::milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

WorkPtr start_reduction(c10d::Backend& backend, const CarrierCall& call, at::Device device,
                        std::chrono::milliseconds timeout) {
  const Reduction reduction = reduction_of(call.reduce, call.dtype);
  const auto numbers = [&](std::byte* data, int parts) {
    const std::size_t count = call.count * static_cast<std::size_t>(reduction.numbers * parts);
    return tensor_of(data, count, reduction.type, device);
  };
  at::Tensor output = numbers(call.output, 1);
  if (call.kind == OpKind::reduce_scatter) {
    auto options = options_with<c10d::ReduceScatterOptions>(timeout);
    options.reduceOp = reduction.op;
    at::Tensor input = numbers(call.input, backend.getSize());
    return backend._reduce_scatter_base(output, input, options);
  }
  Tensors tensors{output};
  if (call.kind == OpKind::reduce) {
    auto options = options_with<c10d::ReduceOptions>(timeout);
    options.reduceOp = reduction.op;
    options.rootRank = call.root;
    return backend.reduce(tensors, options);
  }
  auto options = options_with<c10d::AllreduceOptions>(timeout);
  options.reduceOp = reduction.op;
  return backend.allreduce(tensors, options);
}

WorkPtr start_all_to_all(c10d::Backend& backend, const CarrierCall& call, at::Device device,
                         std::chrono::milliseconds timeout) {
  const std::size_t element = element_size(call.dtype);
  std::size_t sent = 0, received = 0;
  std::vector<std::int64_t> to = bytes_of(call.sent, element, sent), from = bytes_of(call.received, element, received);
  at::Tensor output = tensor_of(call.output, received, at::kByte, device);
  at::Tensor input = tensor_of(call.input, sent, at::kByte, device);
  return backend.alltoall_base(output, input, from, to, options_with<c10d::AllToAllOptions>(timeout));
}

}  // namespace

WorkPtr start_call(c10d::Backend& backend, const CarrierCall& call, at::Device device,
                   std::chrono::milliseconds timeout) {
  const bool is_root = backend.getRank() == call.root;
  const auto bytes = [&](std::byte* data, int parts) {
    return tensor_of(data, call.count * element_size(call.dtype) * static_cast<std::size_t>(parts), at::kByte, device);
  };
  const auto parts = [&](std::byte* data) { return bytes(data, backend.getSize()).chunk(backend.getSize()); };
  switch (call.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::reduce_scatter: return start_reduction(backend, call, device, timeout);
    case OpKind::all_to_all: return start_all_to_all(backend, call, device, timeout);
    case OpKind::broadcast: {
      Tensors tensors{bytes(call.output, 1)};
      auto options = options_with<c10d::BroadcastOptions>(timeout);
      options.rootRank = call.root;
      return backend.broadcast(tensors, options);
    }
    case OpKind::all_gather: {
      at::Tensor output = bytes(call.output, backend.getSize()), input = bytes(call.input, 1);
      return backend._allgather_base(output, input, options_with<c10d::AllgatherOptions>(timeout));
    }
    case OpKind::gather: {
      std::vector<Tensors> outputs;
      if (is_root) outputs.push_back(parts(call.output));
      Tensors inputs{bytes(call.input, 1)};
      auto options = options_with<c10d::GatherOptions>(timeout);
      options.rootRank = call.root;
      return backend.gather(outputs, inputs, options);
    }
    case OpKind::scatter: {
      std::vector<Tensors> inputs;
      if (is_root) inputs.push_back(parts(call.input));
      Tensors outputs{bytes(call.output, 1)};
      auto options = options_with<c10d::ScatterOptions>(timeout);
      options.rootRank = call.root;
      return backend.scatter(outputs, inputs, options);
    }
    default: throw Error(ErrorKind::internal, "this backend does not support " + std::string(to_string(call.kind)));
  }
}

}  // namespace lockstep::internal
