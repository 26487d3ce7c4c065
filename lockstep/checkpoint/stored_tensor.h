// Between tensors and what files hold of them. tensor -> type name, shape, bytes -> tensor. Does not block.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// As in safetensors_element_size(). Error{invalid_argument} that names the tensor: a type that is not stored.
std::string stored_type(const std::string& name, const at::Tensor& tensor);
// REQUIRES: the name is one of kSafetensorsTypes.
at::ScalarType scalar_type(std::string_view stored_type);

// On the CPU, in order and without autograd: the tensor itself, where it is so. Error{invalid_argument}: undefined or
// not dense.
at::Tensor plain_tensor(const std::string& name, const at::Tensor& tensor);
// REQUIRES: a plain tensor.
ByteSpan bytes_of(const at::Tensor& plain);
// Error{invalid_argument}: no memory for it.
at::Tensor empty_stored(const std::string& name, std::string_view type, const std::vector<std::int64_t>& shape);

}  // namespace lockstep::internal
