// How tensors become the elements that files hold, and back: types by the names of safetensors, contiguous CPU memory.
// Does not block. Error{invalid_argument} names the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// Empty for a type that no file of ours holds.
std::string_view dtype_name(at::ScalarType type);

// The name of a type that safetensors files hold. Error{invalid_argument} for another.
std::string stored_type(const std::string& tensor_name, const at::Tensor& tensor);

// Whether files of ours can hold them, by names, types and layouts; copies nothing. Error{invalid_argument} names the
// first tensor that cannot be stored.
void require_storable(const std::map<std::string, at::Tensor>& tensors);

// A dense, contiguous tensor on the CPU without lazy conj or neg. Copies only if it must.
at::Tensor plain_copy(const std::string& name, const at::Tensor& tensor);

// REQUIRES: `dtype` is one of kTorchTypes. `file` is for the error if there is no memory.
at::Tensor new_tensor(const std::string& file, const std::string& name, std::string_view dtype,
                      const std::vector<std::int64_t>& shape);

// REQUIRES: the tensor is contiguous and on the CPU.
ByteSpan bytes_of(const at::Tensor& tensor);
MutableByteSpan mutable_bytes_of(const at::Tensor& tensor);

// Error{invalid_argument} if tensors of this many bytes do not fit into memory: a sparse file can be larger than the
// disk space that it takes.
void check_memory(const std::string& file, std::uint64_t bytes);

}  // namespace lockstep::internal
