#include "lockstep/group/tensor_segments.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(std::string_view operation, const std::string& why) {
  ErrorDetail detail;
  detail.operation = operation;
  throw Error(ErrorKind::invalid_argument, std::string(operation) + ": " + why, detail);
}

template <class T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

std::optional<DType> known_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    case at::kChar: return DType::i8;
    case at::kShort: return DType::i16;
    case at::kBool: return DType::boolean;
    case at::kComplexFloat: return DType::c64;
    case at::kComplexDouble: return DType::c128;
    default: return std::nullopt;
  }
}

DType dtype_of(const at::Tensor& tensor, std::string_view operation) {
  if (const auto dtype = known_dtype(tensor.scalar_type())) return *dtype;
  refuse(operation, "tensors of type " + text_of(tensor.scalar_type()) +
                        " can be moved but not reduced (float32, float64, float16, bfloat16, int64, int32, int16, "
                        "int8, uint8, bool, complex64 and complex128 can)");
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::f16: return at::kHalf;
    case DType::bf16: return at::kBFloat16;
    case DType::i32: return at::kInt;
    case DType::i64: return at::kLong;
    case DType::u8:
    case DType::opaque: return at::kByte;
    case DType::i8: return at::kChar;
    case DType::i16: return at::kShort;
    case DType::boolean: return at::kBool;
    case DType::c64: return at::kComplexFloat;
    case DType::c128: return at::kComplexDouble;
  }
  return at::kByte;
}

namespace {

// A copy in order, where the engine reaches it; with its contents only if they matter.
at::Tensor copy_of(const at::Tensor& tensor, at::Device device, TensorSegments::Flow flow) {
  const bool pinned = tensor.is_cuda() && device.is_cpu();
  const at::Tensor copy =
      at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(device).pinned_memory(pinned));
  if (flow != TensorSegments::Flow::write) copy.copy_(tensor.detach());
  return copy;
}

}  // namespace

TensorSegments::TensorSegments(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory) {
  assign(tensors, operation, use, flow, memory);
}

void TensorSegments::clear() {
  dtype_ = DType::f32;
  count_ = 0;
  segments_.clear();
  keep_.clear();
  copies_.clear();
}

void TensorSegments::assign(at::TensorList tensors, std::string_view operation, Use use, Flow flow, Memory memory) {
  clear();
  segments_.reserve(tensors.size());
  keep_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined()) refuse(operation, "tensor " + std::to_string(i) + " is undefined");
    if (tensor.layout() != at::kStrided) refuse(operation, "tensor " + std::to_string(i) + " is sparse");
    if (tensor.is_meta()) refuse(operation, "tensor " + std::to_string(i) + " is on meta, where it has no memory");
    const DType dtype =
        use == Use::reduce ? dtype_of(tensor, operation) : known_dtype(tensor.scalar_type()).value_or(DType::opaque);
    if (i == 0) dtype_ = dtype;
    if (tensor.scalar_type() != tensors.front().scalar_type()) {
      refuse(operation, "tensor " + std::to_string(i) + " is " + text_of(tensor.scalar_type()) + " where tensor 0 is " +
                            text_of(tensors.front().scalar_type()));
    }
    const bool on_device = !tensor.is_cpu();
    const bool in_reach = !on_device || memory == Memory::device;
    // What the engine or copy_back() does happens on other streams. A copy to the host waits by itself.
    if (on_device && (in_reach || flow == Flow::write)) {
      c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
    }
    at::Tensor flat = tensor;
    if (!in_reach || !tensor.is_contiguous()) {
      flat = copy_of(tensor, in_reach ? tensor.device() : at::Device(at::kCPU), flow);
      if (flow != Flow::read) copies_.emplace_back(tensor.detach(), flat);
    }
    segments_.push_back({static_cast<std::byte*>(flat.data_ptr()), static_cast<std::size_t>(flat.nbytes())});
    count_ += static_cast<std::uint64_t>(flat.nbytes()) / element_size(dtype);
    keep_.push_back(std::move(flat));
  }
}

void TensorSegments::copy_back() const {
  for (const auto& [theirs, copy] : copies_) theirs.copy_(copy);
}

}  // namespace lockstep
