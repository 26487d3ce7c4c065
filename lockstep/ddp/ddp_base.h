// A DdpBase is this rank's copy of a model in data parallel training: everything about DistributedDataParallel that
// does not depend on the model's type. module -> DdpBase -> Reducer. Belongs to one thread. Constructor and
// synchronised forwards and backwards are collective: all ranks make them in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ddp/checks/model_comparison.h"
#include "lockstep/ddp/lockstep_mode/sharded_step.h"
#include "lockstep/ddp/logging_data.h"
#include "lockstep/ddp/mixed_precision/precision_cast.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/group/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

enum class StateDictKeys { bare, module_prefix };  // "fc.weight", or PyTorch's "module.fc.weight"

// What lives for the time of a forward with gradients on, or of one in a lower type.
class ForwardScope {
 public:
  // reducer: null where nobody has to know of the forward.
  ForwardScope(std::shared_ptr<ArenaHeap> heap, std::shared_ptr<Reducer> reducer, ForwardGraphs::Id forward);
  // swap: whose lower type ends with the forward.
  explicit ForwardScope(std::shared_ptr<PrecisionCast> swap);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  // The forward has computed its output.
  void has_returned() { has_returned_ = true; }

 private:
  friend class DdpBase;

  ArenaScope arena_;
  std::shared_ptr<Reducer> reducer_;
  ForwardGraphs::Id forward_ = 0;
  std::shared_ptr<PrecisionCast> swap_;
  bool has_returned_ = false;
};

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
  void zero_grad();

  // Parameters and buffers by name, as PyTorch's state_dict orders them. The tensors are the module's own.
  NamedTensors state_dict(StateDictKeys keys = StateDictKeys::bare) const;
  // Copies values in. Keys with and without the "module." prefix are taken. Error{invalid_argument} lists every
  // missing, unexpected and differently shaped entry, and then nothing is copied.
  void load_state_dict(const NamedTensors& state);

  // While the guard lives, backward leaves each rank's gradients to itself; the forward belongs inside too. The next
  // synchronised backward averages what has added up.
  class NoSync {
   public:
    explicit NoSync(bool& synchronise) : synchronise_(synchronise), previous_(std::exchange(synchronise, false)) {}
    ~NoSync() { synchronise_ = previous_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& synchronise_;
    bool previous_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(synchronise_); }

  // What averages gradients instead of a plain all-reduce. Once, before the first backward, on all ranks alike:
  // Error{invalid_argument} otherwise.
  void register_comm_hook(CommHook hook);

  // With Weighting::samples: how many samples (or tokens) the following forwards count for, until set anew. Unset: the
  // size of the first tensor argument's first dimension. Error{invalid_argument} on this rank, and then nothing has
  // changed, unless it is a finite number of 0 or more.
  void set_weight(std::optional<double> weight);

  // Lockstep mode: see ShardedStep, which these forward to. Error{invalid_argument} if the mode is off.
  double for_each_shard(const std::function<double(Shard)>& body);
  LockstepState lockstep_state() { return sharded().state(); }
  void load_lockstep_state(const LockstepState& state) { sharded().load_state(state); }

  // As the module prints itself.
  friend std::ostream& operator<<(std::ostream& stream, const DdpBase& replica);

  const ProcessGroup& group() const { return group_; }
  const DdpOptions& options() const { return options_; }
  ReducerStats stats() const;
  DdpLoggingData logging_data() const;

 protected:
  // For the duration of a forward. Activations are born in shared memory too: not because anybody else reads them, but
  // because that memory is kept, where malloc gives it back to the system and takes it anew, page by page, every step.
  // input: the first tensor among the arguments; null if there is none.
  [[nodiscard]] ForwardScope begin_forward(const at::Tensor* input);

  // What `run` returns. What it throws, other ranks' errors can quote: see ProcessGroup::note_failure().
  template <class Run>
  auto noting_failures(std::string_view what, Run&& run) const {
    try {
      return std::forward<Run>(run)();
    } catch (...) {
      group_.note_exception(what);
      throw;
    }
  }

  // An argument as the module gets it: a floating tensor in the type that it computes in, on its device.
  at::Tensor converted(const at::Tensor& input) const;
  bool converts_inputs() const { return input_dtype_.has_value() || input_device_.has_value(); }
  // An output as the caller gets it: on the output device.
  at::Tensor delivered(const at::Tensor& output) const;

  // Tells the reducer which tensors the loss will be computed from; looks into the containers that models return.
  template <class Output>
  void watch(const ForwardScope& scope, const Output& output) {
    if (scope.reducer_ == nullptr) return;
    if constexpr (std::is_convertible_v<const Output&, const at::Tensor&>) {
      watch_tensor(scope, output);
    } else if constexpr (requires {
                           output.has_value();
                           *output;
                         }) {
      if (output.has_value()) watch(scope, *output);
    } else if constexpr (requires {
                           output.begin();
                           output.end();
                         }) {
      for (const auto& element : output) watch(scope, element);
    } else if constexpr (requires { std::tuple_size<Output>::value; }) {
      std::apply([&](const auto&... elements) { (watch(scope, elements), ...); }, output);
    }
  }

 private:
  ShardedStep& sharded();
  bool is_ignored(const std::string& name) const;
  bool is_frozen() const;
  std::vector<TrainedParameter> trained_parameters(const NamedTensors& parameters) const;
  void check_devices(const NamedTensors& parameters);
  void lower_buffers();
  void sync_buffers();
  void warn_of_equal_inputs(const at::Tensor* input);
  void compare_parameters(std::uint64_t backwards);
  static void watch_tensor(const ForwardScope& scope, const at::Tensor& output);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const DdpOptions options_;
  NamedTensors compared_;  // parameters that all ranks keep equal
  std::vector<at::Tensor> buffers_;
  std::optional<ValueBroadcast> buffers_broadcast_;  // if there are any
  std::optional<at::ScalarType> input_dtype_;
  std::optional<at::Device> input_device_;
  bool buffers_synced_ = true;
  bool synchronise_ = true;
  bool inputs_seen_ = false;
  std::optional<double> weight_;
  std::uint64_t compared_after_ = 0;     // backwards
  std::shared_ptr<PrecisionCast> swap_;  // null if the module computes in its parameters' type
  std::shared_ptr<Reducer>
      reducer_;  // null where nothing is synchronised by itself: in a group of one, in lockstep mode
  std::unique_ptr<ShardedStep> sharded_;  // in lockstep mode
  std::uint64_t sharded_steps_ = 0;       // that this object has made
};

}  // namespace lockstep
