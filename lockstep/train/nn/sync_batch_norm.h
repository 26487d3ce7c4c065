// SyncBatchNorm is batch normalisation whose statistics in training are those of the batches of all ranks together.
//
//   lockstep::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).eps(1e-3), world.group());
//
// In training forward() makes one collective, and backward one if the input requires a gradient; all ranks must do
// both, also a rank whose batch is empty. Batches may differ in size; that of a rank that has joined (join_state.h)
// counts as empty. In evaluation, and in a group of one, nothing is communicated. Running statistics have the same bits
// on all ranks. In lockstep mode (sharded_step.h) the batches are those of all shards, on one rank too.
// Gradients of weight and bias are those of this rank's part, which data parallel training averages; the gradient of
// the input is that of the global batch. See convert_sync_batchnorm() for models that are made of torch's own batch
// norm. Thread rule and errors: ProcessGroup's calls; Error{invalid_argument} for a batch of the wrong shape, which
// aborts the group, so that all other ranks get the same text in an Error{aborted}; Error{invalid_argument} on all
// ranks for less than two values a channel altogether.
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <iosfwd>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"

namespace lockstep {

// input: [N, C, ...], floating; statistics of bfloat16 and float16 are float32. weight, bias, and both running
// statistics: [C], or undefined. momentum: the weight of this batch in the running statistics. layer: the caller, for
// error texts of lockstep mode. Collective, whatever the size of the group. Gradients of gradients are refused.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& running_mean, const at::Tensor& running_var, double momentum, double eps,
                           const ProcessGroup& group, const SyncBatchNormTag* layer = nullptr);

// Takes [N, C, ...] with any number of further dimensions. Parameters and buffers are named as BatchNorm's.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions>,
                          public SyncBatchNormTag {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group);

  at::Tensor forward(const at::Tensor& input);
  const ProcessGroup& group() const override { return group_; }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  ProcessGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep
