#include "lockstep/group/tensor_segments.h"

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

namespace {

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

}  // namespace

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

TensorSegments::TensorSegments(at::TensorList tensors, std::string_view operation, Use use) {
  segments_.reserve(tensors.size());
  keep_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined()) refuse(operation, "tensor " + std::to_string(i) + " is undefined");
    if (tensor.layout() != at::kStrided) refuse(operation, "tensor " + std::to_string(i) + " is sparse");
    if (!tensor.device().is_cpu()) {
      refuse(operation,
             "tensor " + std::to_string(i) + " is on " + text_of(tensor.device()) + "; this group moves CPU memory");
    }
    const DType dtype =
        use == Use::reduce ? dtype_of(tensor, operation) : known_dtype(tensor.scalar_type()).value_or(DType::opaque);
    if (i == 0) dtype_ = dtype;
    if (tensor.scalar_type() != tensors.front().scalar_type()) {
      refuse(operation, "tensor " + std::to_string(i) + " is " + text_of(tensor.scalar_type()) + " where tensor 0 is " +
                            text_of(tensors.front().scalar_type()));
    }
    at::Tensor flat = tensor;
    if (!tensor.is_contiguous()) {
      flat = tensor.detach().contiguous();
      copies_.emplace_back(tensor.detach(), flat);
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
