// Limits gradients before an optimizer's step, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do: in place, and
// parameters without a gradient are skipped. Sparse gradients, which those refuse, are clipped as dense ones are, and
// remain sparse. gradients -> clipped gradients. Any thread; where a group is given, all of its ranks call it, it
// blocks, and fails as ProcessGroup's calls do.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

struct ClipOptions {
  double norm_type = 2;  // above 0; infinity: the largest element
  // Throw Error{invalid_argument}, on all ranks of the group, if the norm is infinite or not a number; it names the
  // parameters and ranks that cause it, and gradients are unchanged. If unset, they are scaled by it nevertheless.
  bool error_if_nonfinite = false;
};

// Scales the gradients so that their norm, as that of one long vector, is at most max_norm, and returns the earlier
// norm, for which the host waits where it is on a device; it has the same bits with any number of threads. Where the
// gradients are equal on all ranks, as after a DistributedDataParallel's backward, use this one: it needs no
// communication.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options = {});

// The same for a model whose parameters are distributed over the ranks: the norm is that of all ranks' gradients, and
// the same on all of them. One collective.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ProcessGroup& group,
                      const ClipOptions& options = {});

// The two halves of clip_grad_norm, as torch.nn.utils.get_total_norm and clip_grads_with_norm_: the norm stays a tensor
// (a scalar, on the first one's device), and the host waits for no device. Sparse tensors are coalesced.
at::Tensor get_total_norm(const std::vector<at::Tensor>& tensors, double norm_type = 2);
void clip_grads_with_norm(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& total_norm);

// Limits every element to [-clip_value, clip_value].
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace lockstep
