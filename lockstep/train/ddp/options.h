// The options of DistributedDataParallel. Names and defaults follow torch.nn.parallel.DistributedDataParallel where
// PyTorch has the option. Values; the same on all ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/ddp/lockstep_mode/mode.h"

namespace lockstep {

class ProcessGroup;

enum class Bucketing { on, off };  // off: every parameter is reduced by itself, as soon as its gradient is ready

// How the ranks' gradients are averaged. ranks: each rank counts the same, as in PyTorch, which is right if all have as
// many samples. samples: a forward counts as much as it has samples (DdpBase::set_weight), so that unequal batches give
// the gradient that one process would have had for all of them.
// Sent gradients are scaled by weight / (rank 0's first weight), so for 16-bit communication that should be of a usual
// size: after a first batch of 1 sample, the gradients of 100,000 samples overflow.
enum class Weighting { ranks, samples };

// What happens when some rank's gradient holds NaN or Inf. ignore: no check. fail: backward() throws on all ranks,
// naming rank and parameter. skip_step: it is logged, and all gradients are dropped on all ranks, so that
// optimizer.step() changes nothing.
enum class NonFinite { ignore, fail, skip_step };

// Unset: the parameter's, or buffer's, own type. reduce_dtype unset: param_dtype.
struct MixedPrecision {
  std::optional<c10::ScalarType> param_dtype = {};  // of forward and backward; inputs are converted to it
  std::optional<c10::ScalarType> reduce_dtype = {};
  std::optional<c10::ScalarType> buffer_dtype = {};
  bool enabled() const { return param_dtype || reduce_dtype || buffer_dtype; }
};

struct DdpOptions {
  // Gradients are reduced in buckets of about this many MiB. Unset: 25, and a first bucket of 1, so that reduction
  // begins early.
  std::optional<double> bucket_cap_mb = {};
  // The caps of the first buckets, one by one; the last one also applies to all others. Instead of bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};
  Bucketing bucketing = Bucketing::on;
  // Copy rank 0's parameters and buffers to all ranks at construction. Shapes are compared either way.
  bool init_sync = true;
  // Copy rank 0's buffers (batch-norm statistics) to all ranks before a forward in training, and before the first one
  // after it.
  bool forward_sync_buffers = true;

  // Whether a backward may leave out parameters, different ones on each rank. A parameter that some rank used gets the
  // average, others counting as zero; one that no rank used keeps the gradient that it has. Off: such a backward
  // throws on all ranks.
  bool find_unused_parameters = false;
  // With find_unused_parameters: a bucket that no rank used is not reduced.
  bool skip_all_reduce_unused_params = false;
  // The graph is the same in every iteration: the first one shows which parameters are used and how often each gets a
  // gradient, so that parts of the graph that are recomputed in backward may use a parameter several times.
  bool static_graph = false;
  // Reduced together after all others, in one bucket. Names as of named_parameters().
  std::vector<std::string> delay_all_reduce_named_params = {};
  // Parameters and buffers that are neither compared nor copied nor reduced.
  std::vector<std::string> ignored = {};
  MixedPrecision mixed_precision = {};
  Weighting weighting = Weighting::ranks;
  NonFinite non_finite = NonFinite::ignore;
  // Ranks compare a hash of their parameters after 1, 2, 4, ... backwards, at each multiple of this value, in save()
  // and in evaluate(): Error{desync} on all ranks naming the first that differs. 0: never.
  int compare_parameters_every = 100;
  LockstepMode lockstep = {};

  // For models on one device of several. If a model is on the CPU, or on several devices, these must be left unset.
  std::vector<int> device_ids = {};
  std::optional<int> output_device = {};
};

namespace internal {

// Error{invalid_argument} for options that contradict each other, or that the group does not support.
void check_options(const DdpOptions& options, const ProcessGroup& group);
// The settings that must be equal on all ranks for their collectives to match.
std::string text_of(const DdpOptions& options);

}  // namespace internal

}  // namespace lockstep
