// A Replica is this rank's copy of a model in data parallel training: everything about DistributedDataParallel that
// does not depend on the model's type. module -> Replica -> Reducer. Belongs to one thread. Constructor and
// synchronised forwards and backwards are collective: all ranks make them in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ddp/model_state.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/shards.h"
#include "lockstep/group/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

enum class StateDictKeys { bare, module_prefix };  // "fc.weight", or PyTorch's "module.fc.weight"

class Replica {
 public:
  // Error{invalid_argument} on all ranks if the models differ; see DistributedDataParallel.
  Replica(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // The module's own tensors: an optimizer made of them before or after wrapping works.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
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

  // Lockstep mode: see ShardedStep, which these forward to. Error{invalid_argument} if the mode is off.
  double for_each_shard(const std::function<double(Shard)>& body) { return sharded().run(body); }
  LockstepState lockstep_state() { return sharded().state(); }
  void load_lockstep_state(const LockstepState& state) { sharded().load_state(state); }

  const ProcessGroup& group() const { return group_; }
  ReducerStats stats() const;

 protected:
  // For the duration of a forward. Activations are born in shared memory too: not because anybody else reads them, but
  // because that memory is kept, where malloc gives it back to the system and takes it anew, page by page, every step.
  [[nodiscard]] ArenaScope begin_forward();
  // Tells the reducer which tensors the loss will be computed from; looks into the containers that models return.
  template <class Output>
  void watch(const Output& output) {
    if (reducer_ == nullptr) return;
    if constexpr (std::is_convertible_v<const Output&, const at::Tensor&>) {
      watch_tensor(output);
    } else if constexpr (requires {
                           output.has_value();
                           *output;
                         }) {
      if (output.has_value()) watch(*output);
    } else if constexpr (requires {
                           output.begin();
                           output.end();
                         }) {
      for (const auto& element : output) watch(element);
    } else if constexpr (requires { std::tuple_size<Output>::value; }) {
      std::apply([&](const auto&... elements) { (watch(elements), ...); }, output);
    }
  }

 private:
  ShardedStep& sharded();
  void sync_buffers();
  void watch_tensor(const at::Tensor& output);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const DdpOptions options_;
  std::vector<at::Tensor> buffers_;
  bool buffers_synced_ = true;
  bool synchronise_ = true;
  std::shared_ptr<Reducer> reducer_;      // null in a group of one, and in lockstep mode
  std::unique_ptr<ShardedStep> sharded_;  // in lockstep mode
};

}  // namespace lockstep
