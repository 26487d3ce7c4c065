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
#include "lockstep/train/ddp/no_sync.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/reducer.h"
#include "lockstep/train/ddp/state_dict.h"
#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/timing/step_times.h"

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
  bool has_buffers_of_rank_0() const;  // else the next forward copies others
  // Error{desync} on all ranks of the group, naming the first, if parameters differ; unless a rank's
  // compare_parameters_every is 0. For save() and evaluate(). Collective; reads every parameter once.
  void compare_parameters(const ProcessGroup& among) const;
  // In lockstep mode: while it exists, torch computes with as many threads as it does for a shard. Else null.
  [[nodiscard]] std::shared_ptr<internal::ThreadCount> shard_threads() const;
  void zero_grad();

  // See state_dict.h.
  NamedTensors state_dict(StateDictKeys keys = StateDictKeys::bare) const;
  void load_state_dict(const NamedTensors& state);

  // While a guard exists, backward does not average gradients; run the forward inside too. The next synchronised
  // backward averages the accumulated gradients. Guards may overlap and end in any order.
  [[nodiscard]] NoSync no_sync();

  // Replaces the all-reduce. Call once, before the first backward, on all ranks; else Error{invalid_argument}.
  void register_comm_hook(CommHook hook);

  // With Weighting::samples: how many samples (or tokens) the following forwards count for, until the next call. Unset:
  // the size of the first tensor argument's first dimension. Error{invalid_argument} on this rank unless it is finite
  // and 0 or more; then nothing changes.
  void set_weight(std::optional<double> weight);
  std::optional<double> weight() const;

  // Lockstep mode: see ShardedStep, which these forward to. Error{invalid_argument} if the mode is off.
  double for_each_shard(const std::function<double(Shard)>& body);
  LockstepState lockstep_state();
  void load_lockstep_state(const LockstepState& state);
  friend std::ostream& operator<<(std::ostream& stream, const DdpBase& ddp);  // as the module prints itself
  const ProcessGroup& group() const;
  const DdpOptions& options() const;
  ReducerStats stats() const;
  DdpLoggingData logging_data() const;
  const StepTimes& step_times() const;  // of this rank; TrainingRun compares them
  internal::StepTimer& step_timer();

 protected:
  // For the duration of a forward. input, samples: see first_argument.h.
  [[nodiscard]] internal::ForwardScope begin_forward(const at::Tensor* input, std::optional<double> samples);

  // An argument as the module gets it: a floating tensor in the type that it computes in, on its device.
  at::Tensor converted(const at::Tensor& input) const;
  bool converts_inputs() const;
  // An output as the caller gets it: on the output device.
  at::Tensor delivered(const at::Tensor& output) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
