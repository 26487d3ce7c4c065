// DdpBase is the base of DistributedDataParallel: everything about it that does not depend on the model's type.
// module -> DdpBase -> Reducer, or in lockstep mode ShardedStep. Belongs to one thread. The constructor, synchronised
// forwards and backwards are collective: all ranks make them in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/forward_scope.h"
#include "lockstep/train/ddp/lockstep_mode/sharded_step.h"
#include "lockstep/train/ddp/logging_data.h"
#include "lockstep/train/ddp/mixed_precision/precision_cast.h"
#include "lockstep/train/ddp/no_sync.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/owned_parameters.h"
#include "lockstep/train/ddp/reducer.h"
#include "lockstep/train/ddp/state_dict.h"
#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/timing/step_times.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"
#include "lockstep/train/ddp/value_bytes.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class DdpBase {
 public:
  // Error{invalid_argument} on all ranks if the models differ; see DistributedDataParallel.
  DdpBase(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options);
  ~DdpBase();
  DdpBase(const DdpBase&) = delete;
  DdpBase& operator=(const DdpBase&) = delete;

  // The module's own tensors: an optimizer made of them before or after wrapping works.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  std::vector<at::Tensor> buffers() const;
  NamedTensors named_buffers() const;
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;
  // Copies rank 0's buffers to all ranks, or in and after join() those of the first rank that had a batch, unless
  // forward_sync_buffers is off. Collective; afterwards ranks may run different numbers of forwards in evaluation.
  void sync_buffers();
  bool has_buffers_of_rank_0() const { return buffers_from_.rank == 0; }  // else the next forward copies others
  // Error{desync} on all ranks of the group, naming the first, if parameters differ; unless a rank's
  // compare_parameters_every is 0. For save() and evaluate(). Collective; reads every parameter once.
  void compare_parameters(const ProcessGroup& among) const;
  // In lockstep mode: while it exists, torch computes with as many threads as it does for a shard. Else null.
  [[nodiscard]] std::shared_ptr<internal::ThreadCount> shard_threads() const;
  void zero_grad();

  // See state_dict.h.
  NamedTensors state_dict(StateDictKeys keys = StateDictKeys::bare) const { return state_dict_of(*module_, keys); }
  void load_state_dict(const NamedTensors& state) { lockstep::load_state_dict(*module_, state); }

  // While a guard exists, backward does not average gradients; run the forward inside too. The next synchronised
  // backward averages the accumulated gradients. Guards may overlap and end in any order.
  [[nodiscard]] NoSync no_sync() { return NoSync(no_sync_guards_); }

  // Replaces the all-reduce. Call once, before the first backward, on all ranks; else Error{invalid_argument}.
  void register_comm_hook(CommHook hook);

  // With Weighting::samples: how many samples (or tokens) the following forwards count for, until the next call. Unset:
  // the size of the first tensor argument's first dimension. Error{invalid_argument} on this rank unless it is finite
  // and 0 or more; then nothing changes.
  void set_weight(std::optional<double> weight);
  std::optional<double> weight() const { return weight_; }

  // Lockstep mode: see ShardedStep, which these forward to. Error{invalid_argument} if the mode is off.
  double for_each_shard(const std::function<double(Shard)>& body);
  LockstepState lockstep_state() { return sharded().state(); }
  void load_lockstep_state(const LockstepState& state) { sharded().load_state(state); }
  friend std::ostream& operator<<(std::ostream& stream, const DdpBase& ddp);  // as the module prints itself
  const ProcessGroup& group() const { return group_; }
  const DdpOptions& options() const { return options_; }
  ReducerStats stats() const;
  DdpLoggingData logging_data() const;
  const StepTimes& step_times() const { return timer_->total(); }  // of this rank; TrainingRun compares them
  internal::StepTimer& step_timer() { return *timer_; }

 protected:
  // For the duration of a forward. input, samples: see first_argument.h.
  [[nodiscard]] internal::ForwardScope begin_forward(const at::Tensor* input, std::optional<double> samples);

  // An argument as the module gets it: a floating tensor in the type that it computes in, on its device.
  at::Tensor converted(const at::Tensor& input) const;
  bool converts_inputs() const { return input_device_.has_value() || options_.mixed_precision.param_dtype.has_value(); }
  // An output as the caller gets it: on the output device.
  at::Tensor delivered(const at::Tensor& output) const;

 private:
  internal::ShardedStep& sharded();
  bool synchronises() const { return *no_sync_guards_ == 0; }
  void make_models_equal(const NamedTensors& buffers);
  void warn_of_equal_inputs(const at::Tensor* input);
  void compare_parameters_at_times(std::uint64_t backwards);
  internal::ActiveRank active_rank(bool updates) const;
  void sync_buffers_of_forward(bool updates);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const DdpOptions options_;
  std::uint64_t number_ = 1;  // see GradBucket::wrapper()
  std::optional<internal::OwnedParameters> owned_;
  std::optional<internal::ValueBytes> buffers_;  // that are copied from one rank, if any
  internal::ActiveRank buffers_from_;            // that rank
  std::optional<at::Device> input_device_;
  bool buffers_synced_ = true;
  std::shared_ptr<int> no_sync_guards_ = std::make_shared<int>(0);  // that exist
  bool inputs_seen_ = false, own_buffers_told_ = false;
  std::optional<double> weight_;
  std::uint64_t compared_after_ = 0;               // backwards
  std::shared_ptr<internal::PrecisionCast> cast_;  // null if the module computes in its parameters' type
  std::shared_ptr<internal::StepTimer> timer_;
  std::shared_ptr<internal::Reducer> reducer_;  // null if nothing is averaged: in a group of one, and in lockstep mode
  std::unique_ptr<internal::ShardedStep> sharded_;  // in lockstep mode
  std::uint64_t sharded_steps_ = 0;                 // that this object has made
};

}  // namespace lockstep
