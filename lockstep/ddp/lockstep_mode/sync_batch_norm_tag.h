// The tag of synchronised batch norms: in training they compute with the batches of all ranks, so ranks wait for each
// other in the middle of forward and backward. nn tags layers -> lockstep mode looks for tags. Values; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep {

class ProcessGroup;

// A module is tagged if it is one of these itself, or if it is a BatchNorm1d, 2d or 3d and one of these is among the
// gradient hooks of its running mean, which has no gradient.
class SyncBatchNormTag {
 public:
  virtual ~SyncBatchNormTag() = default;
  virtual const ProcessGroup& group() const = 0;  // whose ranks wait
};

namespace internal {

// Null if the tensor has no tag.
const SyncBatchNormTag* tag_among_hooks(const at::Tensor& running_mean);
// Of this very module, not of one below it. Null if it has no tag.
const SyncBatchNormTag* sync_batch_norm_tag_of(const torch::nn::Module& module);

// The names of a model's tagged layers.
using SyncBatchNormNames = std::map<const SyncBatchNormTag*, std::string>;

}  // namespace internal
}  // namespace lockstep
