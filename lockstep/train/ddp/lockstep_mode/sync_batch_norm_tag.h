// The tag of synchronised batch norms: in training they compute with the batches of all ranks, so ranks wait for each
// other in the middle of forward and backward. nn tags layers -> the wrapper names them -> ranks compare the names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

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

  // Its place in a wrapped model: the wrapper sets it in all of its layers when it is created.
  struct Place {
    std::string name;  // of the module, in quotes; empty: it is not in a wrapper
    std::uint64_t wrapper = 0;
  };
  const Place& place() const { return place_; }
  void set_place(Place place) const { place_ = std::move(place); }

 private:
  mutable Place place_;
};

namespace internal {

// Null if the tensor has no tag.
const SyncBatchNormTag* tag_among_hooks(const at::Tensor& running_mean);
// Sets the places of the model's layers.
void place_sync_batch_norms(const torch::nn::Module& model, std::uint64_t wrapper);
// Of this module itself, not of a submodule. Null if it has no tag.
const SyncBatchNormTag* sync_batch_norm_tag_of(const torch::nn::Module& module);

// The name that ranks compare, so that different layers never match: "SyncBatchNorm statistics of 'norm1' in wrapper",
// with the wrapper's number beside it.
std::string label_of(std::string_view what, const SyncBatchNormTag::Place& place);

}  // namespace internal
}  // namespace lockstep
