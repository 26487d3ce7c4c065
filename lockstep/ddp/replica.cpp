#include "lockstep/ddp/replica.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>

#include "lockstep/ddp/diagnostics.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "module.";

NamedTensors pairs_of(const torch::OrderedDict<std::string, at::Tensor>& dict) {
  NamedTensors pairs;
  pairs.reserve(dict.size());
  for (const auto& item : dict) pairs.emplace_back(item.key(), item.value());
  return pairs;
}

// Parameters and buffers, module by module, as PyTorch's state_dict orders them.
void append_state(const torch::nn::Module& module, const std::string& prefix, NamedTensors& state) {
  for (const auto& [name, tensor] : pairs_of(module.named_parameters(false))) state.emplace_back(prefix + name, tensor);
  for (const auto& [name, tensor] : pairs_of(module.named_buffers(false))) state.emplace_back(prefix + name, tensor);
  for (const auto& child : module.named_children()) append_state(*child.value(), prefix + child.key() + ".", state);
}

bool starts_with_prefix(const NamedTensors& state) {
  for (const auto& [name, tensor] : state) {
    if (!std::string_view(name).starts_with(kPrefix)) return false;
  }
  return !state.empty();
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  NamedTensors trained;
  const NamedTensors all = named_parameters();
  for (const auto& [name, tensor] : all) {
    if (!tensor.requires_grad()) continue;
    trained.emplace_back(name, tensor);
    if (GradientHook::watches(tensor)) throw wrapped_twice_error(name);
  }
  if (trained.empty()) throw nothing_to_train_error();
  buffers_ = module_->buffers();
  const NamedTensors named_buffers = pairs_of(module_->named_buffers());
  if (group_.size() > 1) {
    verify_same_model(all, named_buffers, group_);
    if (options_.init_sync) {
      std::vector<at::Tensor> values = parameters();
      values.insert(values.end(), buffers_.begin(), buffers_.end());
      broadcast_values(values, 0, group_, "model state");
    }
  }
  if (options_.lockstep.shards != 0) {
    sharded_ = std::make_unique<ShardedStep>(*module_, trained, named_buffers, group_, options_.lockstep);
  } else if (group_.size() > 1) {
    reducer_ = Reducer::make(trained, group_, options_);
  }
}

Replica::~Replica() = default;

std::vector<at::Tensor> Replica::parameters() const { return module_->parameters(); }
NamedTensors Replica::named_parameters() const { return pairs_of(module_->named_parameters()); }
void Replica::train(bool on) { module_->train(on); }
bool Replica::is_training() const { return module_->is_training(); }
void Replica::zero_grad() { module_->zero_grad(); }

NamedTensors Replica::state_dict(StateDictKeys keys) const {
  NamedTensors state;
  append_state(*module_, keys == StateDictKeys::module_prefix ? std::string(kPrefix) : "", state);
  return state;
}

void Replica::load_state_dict(const NamedTensors& state) {
  std::map<std::string, at::Tensor> given;
  const std::size_t skip = starts_with_prefix(state) ? kPrefix.size() : 0;
  for (const auto& [name, tensor] : state) given.emplace(name.substr(skip), tensor);
  std::string problems;
  const NamedTensors mine = state_dict();
  for (const auto& [name, tensor] : mine) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems += "\n  missing: " + name;
    } else if (found->second.sizes() != tensor.sizes()) {
      problems += "\n  " + name + " has shape " + c10::str(found->second.sizes()) + " where the model has " +
                  c10::str(tensor.sizes());
    }
  }
  std::map<std::string, at::Tensor> known(mine.begin(), mine.end());
  for (const auto& [name, tensor] : given) {
    if (!known.contains(name)) problems += "\n  unexpected: " + name;
  }
  if (!problems.empty())
    throw Error(ErrorKind::invalid_argument, "load_state_dict: the state does not fit the model:" + problems);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : mine) at::Tensor(tensor).copy_(given.at(name));
}

ShardedStep& Replica::sharded() {
  if (sharded_ != nullptr) return *sharded_;
  throw Error(ErrorKind::invalid_argument, "lockstep mode is off; set .lockstep = {.shards = ...} in DdpOptions");
}

ReducerStats Replica::stats() const {
  if (sharded_ != nullptr) {
    return {.backwards = sharded_->state().step, .communication_seconds = sharded_->communication_seconds()};
  }
  return reducer_ == nullptr ? ReducerStats{} : reducer_->stats();
}

ArenaScope Replica::begin_forward() {
  if (sharded_ != nullptr) sharded_->check_forward(is_training());
  if (reducer_ == nullptr) return ArenaScope(nullptr);
  const bool training = at::GradMode::is_enabled();
  if (training) reducer_->prepare(synchronise_);
  sync_buffers();
  return ArenaScope(training ? reducer_->heap() : nullptr);
}

void Replica::sync_buffers() {
  if (!options_.forward_sync_buffers || buffers_.empty() || !synchronise_) return;
  // In evaluation buffers do not change, so ranks may evaluate different numbers of batches.
  if (!is_training() && buffers_synced_) return;
  broadcast_values(buffers_, 0, group_, "buffers");
  buffers_synced_ = !is_training();
}

void Replica::watch_tensor(const at::Tensor& output) {
  if (!at::GradMode::is_enabled()) return;
  when_backward_reaches(output, [weak = std::weak_ptr<Reducer>(reducer_)] {
    if (const auto reducer = weak.lock()) reducer->begin_backward();
  });
}

}  // namespace lockstep
