// Compares the structure of the ranks' models, and the values that tensors have on all ranks. Collective; blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// Decomposes into [name, tensor]; key() and value() are those of torch::OrderedDict's items.
struct NamedTensor : std::pair<std::string, at::Tensor> {
  using pair::pair;
  const std::string& key() const { return first; }
  const at::Tensor& value() const { return second; }
  at::Tensor& value() { return second; }
};
using NamedTensors = std::vector<NamedTensor>;  // in the model's order

inline std::vector<at::Tensor> tensors_of(const NamedTensors& named) {  // without their names
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

// Throws on all ranks Error{invalid_argument}, naming the first parameter or buffer whose name, shape, strides, dtype
// or requires_grad differs from rank 0's, or both texts of `settings`, which must be equal too.
void verify_same_model(const NamedTensors& parameters, const NamedTensors& buffers, const std::string& settings,
                       const ProcessGroup& group);

// Compares a hash of the tensors' values. Throws on all ranks Error{desync}, naming the first tensor that differs and
// the ranks whose values differ from rank 0's. `backwards`: how many there were, for the text. wrapper: that they
// belong to; 0 if the ranks may give those of different ones.
void verify_same_values(const NamedTensors& tensors, const ProcessGroup& group, std::uint64_t backwards,
                        std::uint64_t wrapper);

// Whether all ranks have given a tensor of the same values. Looks at no more than a MiB of it.
bool have_same_values(const at::Tensor& tensor, const ProcessGroup& group);

}  // namespace lockstep
