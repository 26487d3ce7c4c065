// Tensors of a module that lie over each other in memory, as tied weights do: one value under two names. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/ddp/state_dict.h"

namespace lockstep::internal {

// Two that share an element, the one that comes first in memory first; each pair once.
using SharedNames = std::vector<std::pair<std::string, std::string>>;
SharedNames shared_names(const TensorsByName& tensors);

// Whether one tensor keeps its value when the other one, with which it shares memory, gets its own. Looks at copies,
// and changes neither.
bool can_hold_both(const at::Tensor& one, const at::Tensor& its_value, const at::Tensor& other,
                   const at::Tensor& other_value);

}  // namespace lockstep::internal
