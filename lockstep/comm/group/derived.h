// Parts of collectives that are made of a group's other ones. Pure, except that premultiply() writes to its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// Groups tensors by dtype, since a collective takes tensors of one.
std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype(at::TensorList tensors);

// The first step of ProcessGroup::all_reduce_premul_sum(), for use with any operation.
void premultiply(at::TensorList tensors, const at::Tensor& factor);
void premultiply(at::TensorList tensors, double factor);

}  // namespace lockstep::internal
