// Named tensors, such as an optimizer's state, as bytes and back. tensors -> bytes -> objects of a group -> tensors.
// Nothing in the bytes is ever executed; Error{corrupt_data} if they are not what encode_tensors() wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

// Tensors of any device and layout, as contiguous CPU data.
std::string encode_tensors(const std::map<std::string, at::Tensor>& tensors);
std::map<std::string, at::Tensor> decode_tensors(std::string_view bytes);

}  // namespace lockstep
