// The plain way to data parallel training, without a wrapper: call it between backward() and step(). Also the reference
// that the overlapped way is compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// Replaces each parameter's gradient by its mean over the ranks. Parameters without a gradient are skipped, and must be
// the same ones on all ranks. In join() ranks that have joined count as others: set their gradients to zero there
// (is_joined()). Blocks; fails as ProcessGroup::all_reduce does.
void average_gradients(const std::vector<at::Tensor>& parameters, const ProcessGroup& group);

}  // namespace lockstep
