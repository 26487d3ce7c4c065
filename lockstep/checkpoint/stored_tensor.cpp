#include "lockstep/checkpoint/stored_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors_header.h"

namespace lockstep::internal {
namespace {

// In the order of kSafetensorsTypes.
constexpr std::array kScalarTypes{at::kBool,   at::kByte,     at::kChar,   at::kUInt16, at::kShort,
                                  at::kHalf,   at::kBFloat16, at::kUInt32, at::kInt,    at::kFloat,
                                  at::kUInt64, at::kLong,     at::kDouble};
static_assert(kScalarTypes.size() == kSafetensorsTypes.size());

}  // namespace

at::ScalarType scalar_type(std::string_view stored_type) {
  const auto* found = std::ranges::find(kSafetensorsTypes, stored_type, &SafetensorsType::name);
  return kScalarTypes.at(static_cast<std::size_t>(found - kSafetensorsTypes.begin()));
}

std::string stored_type(const std::string& name, const at::Tensor& tensor) {
  const auto* found = std::ranges::find(kScalarTypes, tensor.scalar_type());
  if (found == kScalarTypes.end()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' has the type {}, which is not stored",
                                                         name, c10::toString(tensor.scalar_type())));
  }
  return std::string(kSafetensorsTypes.at(static_cast<std::size_t>(found - kScalarTypes.begin())).name);
}

at::Tensor plain_tensor(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' is undefined", name));
  }
  if (tensor.layout() != at::kStrided) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' is not a dense one", name));
  }
  return tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
}

ByteSpan bytes_of(const at::Tensor& plain) {
  return {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()};
}

at::Tensor empty_stored(const std::string& name, std::string_view type, const std::vector<std::int64_t>& shape) {
  try {
    return at::empty(shape, at::TensorOptions().dtype(scalar_type(type)).device(at::kCPU));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("no memory for tensor '{}': {}", name, error.what_without_backtrace()));
  }
}

}  // namespace lockstep::internal
