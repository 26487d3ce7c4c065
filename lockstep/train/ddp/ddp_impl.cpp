#include "lockstep/train/ddp/ddp_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/call_meter.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"
#include "lockstep/train/ddp/lockstep_mode/thread_count.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"
#include "lockstep/train/ddp/wrapped_module.h"

namespace lockstep {

using namespace internal;

namespace {

// Whether no parameter wants a gradient now, as those of a GAN's discriminator while the generator learns.
bool none_wants_gradient(const NamedTensors& parameters) {
  return std::ranges::none_of(parameters, [](const auto& one) { return one.second.requires_grad(); });
}

// The number of wrappers of rank 0, this one included; the others' counts may differ.
std::uint64_t number_of_wrapper(const ProcessGroup& group) {
  static std::atomic<std::int64_t> made = 0;
  const at::Tensor number = at::tensor({group.rank() == 0 ? ++made : 0}, at::kLong);
  group.broadcast(number, 0, {.name = "DDP number of the wrapper"});
  return static_cast<std::uint64_t>(number.item<std::int64_t>());
}

std::shared_ptr<StepTimer> timer_of(const ProcessGroup& group, std::uint64_t wrapper) {
  return std::make_shared<StepTimer>(
      StepTimer::Sources{.clock = tsc_clock(),
                         .calls = [group](TimePoint now) { return group.call_times(now); },
                         .record = [](FlightPhase& phase) { process_recorder().add_phase(phase); },
                         .count_step = [] { process_recorder().count_step(); },
                         .model = static_cast<std::uint32_t>(wrapper)});
}

// In training, also if only a part of the module is.
bool updates_buffers(const torch::nn::Module& module) {
  if (module.is_training()) return true;
  const auto parts = module.modules(/*include_self=*/false);
  return std::ranges::any_of(parts, [](const auto& part) { return part->is_training(); });
}

// The weight of a forward without set_weight().
double weight_of(const at::Tensor* input, std::optional<double> samples, Weighting weighting) {
  if (samples) return *samples;
  if (input != nullptr) return input->dim() > 0 ? static_cast<double>(input->size(0)) : 1;
  if (weighting != Weighting::samples) return 1;
  throw options_error(
      "the arguments of this forward pass do not show its number of samples: none of them is a tensor, a list of "
      "tensors or a PackedSequence. Call set_weight() before it, on every rank");
}

void cast_buffers(const NamedTensors& buffers, const std::optional<at::ScalarType>& dtype) {
  if (!dtype) return;
  for (const auto& [name, buffer] : buffers) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(*dtype));
  }
}

}  // namespace

DdpBase::Impl::Impl(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  if (module_ == nullptr) throw Error(ErrorKind::invalid_argument, "DistributedDataParallel: the module is null");
  check_options(options_, group_);
  WrappedModule of = wrapped(*module_, options_);
  if (group_.size() > 1) check_forward_changes_none(*module_, options_);
  owned_.emplace(*module_, std::move(of.parameters));
  input_device_ = of.input_device;
  cast_buffers(of.buffers, options_.mixed_precision.buffer_dtype);
  if (const auto dtype = options_.mixed_precision.param_dtype) {
    cast_ = std::make_shared<PrecisionCast>(of.cast, *dtype);
  }
  if (group_.size() > 1) make_models_equal(of.buffers);
  place_sync_batch_norms(*module_, number_);
  timer_ = timer_of(group_, number_);
  const bool looks_at_gradients = options_.weighting != Weighting::ranks || options_.non_finite != NonFinite::ignore;
  if (options_.lockstep.shards != 0) {
    NamedTensors tensors;
    for (const TrainedParameter& parameter : of.trained) tensors.emplace_back(parameter.name, parameter.tensor);
    sharded_ = std::make_unique<ShardedStep>(*module_, tensors, of.buffers, group_, options_.lockstep, number_);
  } else if (group_.size() > 1 || looks_at_gradients || cast_ != nullptr) {
    reducer_ = Reducer::make(std::move(of.trained), group_, options_, cast_, timer_, number_);
    reducer_->before_averages_in_evaluation([this] { compare_parameters_at_times(stats().backwards); });
  }
}

DdpBase::Impl::~Impl() {
  if (reducer_ != nullptr) reducer_->before_averages_in_evaluation(nullptr);
}

void DdpBase::Impl::make_models_equal(const NamedTensors& buffers) {
  verify_same_model(owned_->compared(), buffers, text_of(options_), group_);
  number_ = number_of_wrapper(group_);
  std::vector<at::Tensor> values = tensors_of(buffers);
  if (!values.empty() && options_.forward_sync_buffers) buffers_.emplace(values);
  if (!options_.init_sync) return;
  for (const auto& [name, tensor] : owned_->compared()) values.push_back(tensor);
  ValueBytes(std::move(values)).broadcast(0, group_, {.name = "DDP model state"});
}

ShardedStep& DdpBase::Impl::sharded() {
  if (sharded_ != nullptr) return *sharded_;
  throw Error(ErrorKind::invalid_argument, "lockstep mode is off; set .lockstep = {.shards = ...} in DdpOptions");
}

double DdpBase::Impl::for_each_shard(const std::function<double(Shard)>& body) {
  ShardedStep& step = sharded();
  if (!synchronises()) {
    throw options_error(
        "for_each_shard() cannot be called under no_sync(); to accumulate gradients, run several backward passes in "
        "the callback");
  }
  owned_->check(group_);
  compare_parameters_at_times(sharded_steps_);
  timer_->compute_begins();
  const double loss = step.run(body);
  timer_->compute_ends();
  ++sharded_steps_;
  return loss;
}

ReducerStats DdpBase::Impl::stats() const {
  if (sharded_ != nullptr) {
    return {.backwards = sharded_->step(), .communication_seconds = sharded_->communication_seconds()};
  }
  return reducer_ == nullptr ? ReducerStats{} : reducer_->averager().stats();
}

ForwardScope DdpBase::Impl::begin_forward(const at::Tensor* input, std::optional<double> samples_told) {
  if (sharded_ != nullptr) sharded_->check_forward(module_->is_training());
  const bool is_differentiable = at::GradMode::is_enabled() && !none_wants_gradient(owned_->compared());
  if (!is_differentiable) {  // an evaluation
    timer_->leave_out();
  } else if (sharded_ == nullptr) {  // else within for_each_shard()
    reducer_ == nullptr ? timer_->compute_begins() : timer_->forward_begins();
  }
  if (sharded_ != nullptr && !is_differentiable) return ForwardScope(shard_threads());
  if (sharded_ != nullptr && !sharded_->is_running()) {
    return ForwardScope(sharded_->outside(), sharded_->outside()->begin({}));
  }
  if (reducer_ == nullptr) return {};
  if (is_differentiable) {
    owned_->check(group_);
    reducer_->check_parameters();
  }
  const double weight = weight_ ? *weight_ : weight_of(input, samples_told, options_.weighting);
  const bool trains = updates_buffers(*module_);
  const JoinState join = join_state();
  ActiveRank active;
  try {
    // One rank may evaluate alone, also with gradients on; a backward compares, if one follows.
    const bool is_of_all = synchronises() && trains;
    if (is_differentiable) reducer_->averager().agree_on_unit(weight, is_of_all);
    if (is_differentiable && is_of_all) {
      warn_of_equal_inputs(input);
      compare_parameters_at_times(reducer_->averager().stats().backwards);
    }
    active = active_rank(trains);
    // The last forward's buffers are those of a rank that had a batch for it; if that was in this join, one that still
    // has.
    if (active.join != 0 && active.join == buffers_from_.join) buffers_from_ = active;
    sync_buffers_of_forward(trains);
  } catch (const Error& error) {
    throw lone_forward_error(error);
  }
  // Outside of a join a rank may make local forwards alone.
  if (trains && (synchronises() || active.join != 0)) buffers_from_ = active;
  if (!is_differentiable) {
    const bool is_within_backward = cast_ != nullptr && cast_->is_cast();
    if (cast_ != nullptr) cast_->cast_for_evaluation();
    return ForwardScope(is_within_backward ? nullptr : cast_);
  }
  return ForwardScope(reducer_, reducer_->begin_forward({.synchronise = synchronises(),
                                                         .is_training = trains,
                                                         .joined = join.joined,
                                                         .weight = weight,
                                                         .divide_by_active = join.divide_by_active}));
}

// A group other than the join's asks its own ranks, before forwards that all of them make.
ActiveRank DdpBase::Impl::active_rank(bool updates) const {
  const JoinState join = join_state();
  if (join.group == nullptr || !buffers_) return {};
  if (join.group->is_same_group(group_)) return join.active;
  if (!synchronises() || !(updates || !buffers_synced_)) return {};
  const at::Tensor mine = at::tensor({join.joined ? 0 : 1}, at::kInt);
  int rank = 0;
  const CallOptions call{.name = "DDP ranks with batches, wrapper", .number = number_};
  for (const at::Tensor& theirs : group_.all_gather(mine, call)) {
    if (*theirs.const_data_ptr<int>() != 0) return {rank, join.active.join};
    ++rank;
  }
  return {};
}

// Ranks that read the same data compute the same gradient several times, and nothing else shows it.
void DdpBase::Impl::warn_of_equal_inputs(const at::Tensor* input) {
  if (inputs_seen_ || group_.size() == 1) return;
  inputs_seen_ = true;
  if (input != nullptr && have_same_values(*input, group_) && group_.rank() == 0) {
    log_warning(
        "DistributedDataParallel: all ranks passed the same tensor to their first forward pass. If it is training "
        "data, all "
        "ranks compute the same gradients: give each rank its own part, for example with a DistributedSampler");
  }
}

void DdpBase::Impl::compare_parameters_at_times(std::uint64_t backwards) {
  const auto every = static_cast<std::uint64_t>(options_.compare_parameters_every);
  if (every == 0 || group_.size() == 1 || backwards == compared_after_) return;
  // Soon at first: most mistakes are made from the first step on.
  const bool is_due = backwards % every == 0 || (backwards < every && std::has_single_bit(backwards));
  if (!is_due) return;
  compared_after_ = backwards;
  verify_same_values(owned_->compared(), group_, backwards, number_);
}

void DdpBase::Impl::sync_buffers() {
  if (!buffers_) return;
  buffers_->broadcast(buffers_from_.rank, group_, {.name = "DDP buffers of wrapper", .number = number_});
  buffers_synced_ = true;
}

void DdpBase::Impl::sync_buffers_of_forward(bool updates) {
  if (!buffers_) return;
  // In evaluation buffers do not change, so ranks may evaluate different numbers of batches.
  if (synchronises() && (updates || !buffers_synced_)) sync_buffers();
  if (updates) buffers_synced_ = false;
  if (updates || synchronises() || buffers_synced_ || std::exchange(own_buffers_told_, true)) return;
  log_warning(
      "DistributedDataParallel: an evaluation under no_sync() uses this rank's own buffers, such as the statistics of "
      "batch norms, which differ between ranks after a forward pass in training. Evaluate outside of no_sync(), or "
      "call "
      "sync_buffers() before, on all ranks");
}

std::shared_ptr<ThreadCount> DdpBase::Impl::shard_threads() const {
  return sharded_ == nullptr ? nullptr : std::make_shared<ThreadCount>(options_.lockstep.threads);
}

}  // namespace lockstep
