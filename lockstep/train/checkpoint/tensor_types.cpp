#include "lockstep/train/checkpoint/tensor_types.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/formats/safetensors/safetensors_header.h"
#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep::internal {
namespace {

// In the order of kTorchTypes.
constexpr std::array kScalarTypes{at::kBool,
                                  at::kByte,
                                  at::kChar,
                                  at::kUInt16,
                                  at::kShort,
                                  at::kHalf,
                                  at::kBFloat16,
                                  at::kUInt32,
                                  at::kInt,
                                  at::kFloat,
                                  at::kUInt64,
                                  at::kLong,
                                  at::kDouble,
                                  at::kFloat8_e4m3fn,
                                  at::kFloat8_e5m2,
                                  at::kFloat8_e4m3fnuz,
                                  at::kFloat8_e5m2fnuz,
                                  at::kFloat8_e8m0fnu,
                                  at::kComplexHalf,
                                  at::kComplexFloat,
                                  at::kComplexDouble,
                                  at::kFloat4_e2m1fn_x2,
                                  at::kBits8,
                                  at::kBits16,
                                  at::kBits1x8,
                                  at::kBits2x4,
                                  at::kBits4x2};
static_assert(kScalarTypes.size() == kTorchTypes.size());

}  // namespace

std::string_view dtype_name(at::ScalarType type) {
  const auto* found = std::ranges::find(kScalarTypes, type);
  if (found == kScalarTypes.end()) return {};
  return kTorchTypes.at(static_cast<std::size_t>(found - kScalarTypes.begin())).name;
}

std::string stored_type(const std::string& tensor_name, const at::Tensor& tensor) {
  const std::string name(dtype_name(tensor.scalar_type()));
  if (safetensors_element_size(name) == 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoint: tensor '{}' has the type {}, which cannot be stored", tensor_name,
                            c10::toString(tensor.scalar_type())));
  }
  return name;
}

namespace {

void require_dense(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' is undefined", name));
  }
  if (tensor.layout() != at::kStrided) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoint: tensor '{}' is not dense, so it cannot be stored", name));
  }
  if (tensor.is_meta()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("checkpoint: tensor '{}' is on the meta device and has no data", name));
  }
}

}  // namespace

void require_storable(const std::map<std::string, at::Tensor>& tensors) {
  SafetensorsHeader header;
  for (const auto& [name, tensor] : tensors) {
    require_dense(name, tensor);
    header.tensors.push_back({.name = name, .dtype = stored_type(name, tensor), .shape = tensor.sizes().vec()});
  }
  lay_out(header);
  serialise_header(header);
}

at::Tensor plain_copy(const std::string& name, const at::Tensor& tensor) {
  require_dense(name, tensor);
  return tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
}

at::Tensor new_tensor(const std::string& file, const std::string& name, std::string_view dtype,
                      const std::vector<std::int64_t>& shape) {
  const auto* type = find_torch_type(dtype);
  const at::ScalarType scalar_type = kScalarTypes.at(static_cast<std::size_t>(type - kTorchTypes.data()));
  try {
    return at::empty(shape, at::TensorOptions().dtype(scalar_type).device(at::kCPU));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: not enough memory for tensor '{}': {}", file, name, error.what_without_backtrace()));
  }
}

ByteSpan bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

MutableByteSpan mutable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

void check_memory(const std::string& file, std::uint64_t bytes) {
  if (bytes <= machine_memory_bytes()) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: its tensors take {} bytes; this machine has {} of memory",
                                                       file, bytes, machine_memory_bytes()));
}

}  // namespace lockstep::internal
