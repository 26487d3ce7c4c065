#include "lockstep/train/ddp/ddp_base.h"

#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include <cmath>
#include <ostream>
#include <utility>

#include "lockstep/train/ddp/checks/ddp_errors.h"
#include "lockstep/train/ddp/ddp_impl.h"
#include "lockstep/train/ddp/wrapped_module.h"

namespace lockstep {

using namespace internal;

DdpBase::DdpBase(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(group), options)) {}
DdpBase::~DdpBase() = default;

bool DdpBase::has_buffers_of_rank_0() const { return impl_->buffers_from_.rank == 0; }
void DdpBase::sync_buffers() { impl_->sync_buffers(); }
NamedTensors DdpBase::state_dict(StateDictKeys keys) const { return state_dict_of(*impl_->module_, keys); }
void DdpBase::load_state_dict(const NamedTensors& state) { lockstep::load_state_dict(*impl_->module_, state); }
NoSync DdpBase::no_sync() { return NoSync(impl_->no_sync_guards_); }
std::optional<double> DdpBase::weight() const { return impl_->weight_; }
double DdpBase::for_each_shard(const std::function<double(Shard)>& body) { return impl_->for_each_shard(body); }
LockstepState DdpBase::lockstep_state() { return impl_->sharded().state(); }
void DdpBase::load_lockstep_state(const LockstepState& state) { impl_->sharded().load_state(state); }
std::shared_ptr<ThreadCount> DdpBase::shard_threads() const { return impl_->shard_threads(); }
const ProcessGroup& DdpBase::group() const { return impl_->group_; }
const DdpOptions& DdpBase::options() const { return impl_->options_; }
ReducerStats DdpBase::stats() const { return impl_->stats(); }
const StepTimes& DdpBase::step_times() const { return impl_->timer_->total(); }
StepTimer& DdpBase::step_timer() { return *impl_->timer_; }
ForwardScope DdpBase::begin_forward(const at::Tensor* input, std::optional<double> samples) {
  return impl_->begin_forward(input, samples);
}
bool DdpBase::converts_inputs() const {
  return impl_->input_device_.has_value() || options().mixed_precision.param_dtype.has_value();
}

std::vector<at::Tensor> DdpBase::parameters() const { return impl_->module_->parameters(); }
NamedTensors DdpBase::named_parameters() const { return named_parameters_of(*impl_->module_); }
std::vector<at::Tensor> DdpBase::buffers() const { return impl_->module_->buffers(); }
NamedTensors DdpBase::named_buffers() const { return named_buffers_of(*impl_->module_); }
std::ostream& operator<<(std::ostream& stream, const DdpBase& ddp) {
  return stream << "DistributedDataParallel(" << *ddp.impl_->module_ << ")";
}
void DdpBase::train(bool on) { impl_->module_->train(on); }
bool DdpBase::is_training() const { return impl_->module_->is_training(); }
void DdpBase::zero_grad() { impl_->module_->zero_grad(); }

void DdpBase::set_weight(std::optional<double> weight) {
  if (weight && !(std::isfinite(*weight) && *weight >= 0)) {
    throw options_error("set_weight() got " + c10::str(*weight) +
                        "; a weight is the number of samples or tokens in a forward pass: finite, 0 or more");
  }
  impl_->weight_ = weight;
}

void DdpBase::register_comm_hook(CommHook hook) {
  if (!hook) throw options_error("register_comm_hook() got an empty hook");
  if (impl_->sharded_ != nullptr) throw options_error("lockstep mode takes no communication hook");
  if (impl_->reducer_ == nullptr) return;
  BackwardAverager& averager = impl_->reducer_->averager();
  if (averager.has_hook()) throw options_error("a communication hook is registered already");
  if (averager.stats().backwards != 0) {
    throw options_error("register_comm_hook() was called after " + std::to_string(averager.stats().backwards) +
                        " backward passes; call it before the first");
  }
  averager.set_hook(std::move(hook));
}

DdpLoggingData DdpBase::logging_data() const {
  DdpLoggingData data;
  data.rank = impl_->group_.rank();
  data.world_size = impl_->group_.size();
  data.backend_name = impl_->group_.transport();
  for (const auto& [name, tensor] : impl_->owned_->compared()) {
    if (!tensor.requires_grad()) continue;
    ++data.num_parameter_tensors;
    data.total_parameter_size_bytes += tensor.nbytes();
  }
  data.find_unused_parameters = impl_->options_.find_unused_parameters;
  data.static_graph = impl_->options_.static_graph;
  if (impl_->reducer_ == nullptr) return data;
  const BackwardAverager& averager = impl_->reducer_->averager();
  data.bucket_sizes = averager.bucket_bytes();
  data.has_rebuilt_buckets = averager.has_rebuilt_buckets();
  data.has_comm_hook = averager.has_hook();
  data.stats = averager.stats();
  return data;
}

void DdpBase::compare_parameters(const ProcessGroup& among) const {
  if (among.size() == 1) return;
  // Its ranks may have wrappers over other groups, with other options and models.
  const bool may_differ = impl_->options_.compare_parameters_every == 0;
  const std::int64_t mine = may_differ ? -1 : static_cast<std::int64_t>(impl_->owned_->compared().size());
  const std::vector<at::Tensor> told = among.all_gather(at::tensor({mine}, at::kLong), {.name = "DDP comparison"});
  const auto number = [&](int rank) { return *told[static_cast<std::size_t>(rank)].const_data_ptr<std::int64_t>(); };
  int other = 0;
  for (int rank = 0; rank < among.size(); ++rank) {
    if (number(rank) < 0) return;
    if (other == 0 && number(rank) != number(0)) other = rank;
  }
  if (other != 0) {
    throw different_models_error(other, "the number of parameters", std::to_string(number(0)),
                                 std::to_string(number(other)));
  }
  verify_same_values(impl_->owned_->compared(), among, stats().backwards, 0);
}

at::Tensor DdpBase::converted(const at::Tensor& input) const {
  if (!input.defined()) return input;
  const auto dtype = input.is_floating_point() ? impl_->options_.mixed_precision.param_dtype : std::nullopt;
  return input.to(impl_->input_device_.value_or(input.device()), dtype.value_or(input.scalar_type()));
}

at::Tensor DdpBase::delivered(const at::Tensor& output) const {
  if (!impl_->options_.output_device || !output.defined()) return output;
  return output.to(at::Device(output.device().type(), static_cast<at::DeviceIndex>(*impl_->options_.output_device)));
}

}  // namespace lockstep
