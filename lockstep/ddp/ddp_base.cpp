#include "lockstep/ddp/ddp_base.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/adapters/backends.h"
#include "lockstep/base/log.h"
#include "lockstep/ddp/checks/ddp_errors.h"
#include "lockstep/ddp/uneven_inputs/join_state.h"

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

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Weights whose gradients are sparse.
std::vector<at::Tensor> sparse_weights(const torch::nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const auto& one : module.modules()) {
    if (const auto* embedding = one->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) weights.push_back(embedding->weight);
    } else if (const auto* bag = one->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) weights.push_back(bag->weight);
    }
  }
  return weights;
}

void check_options(const DdpOptions& options) {
  if (options.bucket_cap_mb && !options.bucket_cap_mb_list.empty()) {
    throw options_error("bucket_cap_mb and bucket_cap_mb_list are both set; give one of them");
  }
  std::vector<double> caps = options.bucket_cap_mb_list;
  if (options.bucket_cap_mb) caps.push_back(*options.bucket_cap_mb);
  for (const double cap : caps) {
    if (!(cap >= 0)) throw options_error("a bucket cap of " + std::to_string(cap) + " MiB");
  }
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters) {
    throw options_error("skip_all_reduce_unused_params needs find_unused_parameters");
  }
  const bool plain = !options.find_unused_parameters && !options.static_graph && !options.mixed_precision.enabled() &&
                     options.weighting == Weighting::ranks && options.non_finite == NonFinite::ignore &&
                     options.delay_all_reduce_named_params.empty();
  if (options.lockstep.shards != 0 && !plain) {
    throw options_error(
        "lockstep mode adds gradients up in an order of its own; leave find_unused_parameters (it is so anyway), "
        "static_graph, mixed_precision, weighting, non_finite and delay_all_reduce_named_params unset");
  }
  const MixedPrecision& mixed = options.mixed_precision;
  for (const auto& dtype : {mixed.param_dtype, mixed.reduce_dtype, mixed.buffer_dtype}) {
    if (dtype && !c10::isFloatingType(*dtype)) {
      throw options_error("mixed_precision names the type " + c10::str(*dtype) + ", which is no floating type");
    }
  }
  if (options.compare_parameters_every < 0) {
    throw options_error("compare_parameters_every is " + std::to_string(options.compare_parameters_every));
  }
}

// What is averaged or copied needs memory of its own for each element.
void check_tensors(const NamedTensors& tensors, const std::string& kind, const std::vector<std::string>& ignored) {
  for (const auto& [name, tensor] : tensors) {
    if (contains(ignored, name)) continue;
    if (!tensor.defined()) throw options_error("the " + kind + " " + name + " is undefined");
    if (tensor.layout() != at::kStrided) {
      throw options_error("the " + kind + " " + name + " has the layout " + c10::str(tensor.layout()) +
                          "; only dense ones can be synchronised. Convert it by to_dense(), or list it in `ignored`");
    }
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      throw options_error("several elements of the " + kind + " " + name +
                          " share memory, as after expand(), so it cannot be written to; register a clone() of it");
    }
  }
}

void check_names(const std::vector<std::string>& names, const char* option, const NamedTensors& parameters,
                 const NamedTensors* buffers) {
  for (const std::string& name : names) {
    const auto is_it = [&](const auto& entry) { return entry.first == name; };
    if (std::any_of(parameters.begin(), parameters.end(), is_it)) continue;
    if (buffers != nullptr && std::any_of(buffers->begin(), buffers->end(), is_it)) continue;
    throw options_error(std::string(option) + " names " + name + ", which the module does not have");
  }
}

// Lockstep mode needs sums in an order that other libraries do not promise; between two ranks there is only one.
void check_backend(const ProcessGroup& group) {
  const std::vector<std::string> known = backends();
  if (group.size() <= 2 || !contains(known, std::string(group.transport()))) return;
  throw options_error("lockstep mode adds up as a tree, which the backend " + std::string(group.transport()) +
                      " cannot do with " + std::to_string(group.size()) +
                      " ranks; make the group with the backend native (GroupOptions::backend or LOCKSTEP_BACKEND)");
}

std::string text_of(const std::optional<c10::ScalarType>& dtype) { return dtype ? c10::str(*dtype) : "own"; }

// What ranks must have set alike for their collectives to match.
std::string text_of(const DdpOptions& options) {
  std::string caps;
  for (const double cap : options.bucket_cap_mb_list) caps += " " + std::to_string(cap);
  return "options bucketing=" + std::to_string(static_cast<int>(options.bucketing)) +
         " bucket_cap_mb=" + (options.bucket_cap_mb ? std::to_string(*options.bucket_cap_mb) : "default") +
         " bucket_cap_mb_list=[" + caps + "] init_sync=" + std::to_string(options.init_sync) +
         " forward_sync_buffers=" + std::to_string(options.forward_sync_buffers) +
         " find_unused_parameters=" + std::to_string(options.find_unused_parameters) +
         " skip_all_reduce_unused_params=" + std::to_string(options.skip_all_reduce_unused_params) +
         " static_graph=" + std::to_string(options.static_graph) +
         " delayed=" + std::to_string(options.delay_all_reduce_named_params.size()) +
         " mixed_precision=" + text_of(options.mixed_precision.param_dtype) + "," +
         text_of(options.mixed_precision.reduce_dtype) + "," + text_of(options.mixed_precision.buffer_dtype) +
         " lockstep mode=" + (options.lockstep.shards == 0 ? "off" : "on") +
         " weighting=" + std::to_string(static_cast<int>(options.weighting)) +
         " non_finite=" + std::to_string(static_cast<int>(options.non_finite)) +
         " compare_parameters_every=" + std::to_string(options.compare_parameters_every);
}

}  // namespace

ForwardScope::ForwardScope(std::shared_ptr<ArenaHeap> heap, std::shared_ptr<Reducer> reducer, ForwardGraphs::Id forward)
    : arena_(std::move(heap)), reducer_(std::move(reducer)), forward_(forward) {}

ForwardScope::ForwardScope(std::shared_ptr<PrecisionCast> swap) : arena_(nullptr), swap_(std::move(swap)) {}

ForwardScope::~ForwardScope() {
  if (reducer_ != nullptr) reducer_->end_forward(forward_, has_returned_);
  if (swap_ != nullptr) swap_->restore();
}

DdpBase::DdpBase(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  if (module_ == nullptr) throw Error(ErrorKind::invalid_argument, "DistributedDataParallel: there is no module");
  check_options(options_);
  if (options_.lockstep.shards != 0) check_backend(group_);
  const NamedTensors all = named_parameters();
  const NamedTensors all_buffers = pairs_of(module_->named_buffers());
  check_names(options_.ignored, "ignored", all, &all_buffers);
  check_names(options_.delay_all_reduce_named_params, "delay_all_reduce_named_params", all, nullptr);
  check_tensors(all, "parameter", options_.ignored);
  check_tensors(all_buffers, "buffer", options_.ignored);
  check_devices(all);
  for (const auto& [name, tensor] : all) {
    if (!is_ignored(name)) compared_.emplace_back(name, tensor);
  }
  std::vector<TrainedParameter> trained = trained_parameters(compared_);
  if (trained.empty()) throw nothing_to_train_error();
  NamedTensors buffers;
  for (const auto& [name, tensor] : all_buffers) {
    if (is_ignored(name)) continue;
    buffers.emplace_back(name, tensor);
    buffers_.push_back(tensor);
  }
  lower_buffers();
  if (const auto dtype = options_.mixed_precision.param_dtype) {
    swap_ = std::make_shared<PrecisionCast>(parameters(), *dtype);
    input_dtype_ = dtype;
  }
  if (group_.size() > 1) {
    verify_same_model(compared_, buffers, text_of(options_), group_);
    if (options_.init_sync) {
      std::vector<at::Tensor> values = buffers_;
      for (const auto& [name, tensor] : compared_) values.push_back(tensor);
      broadcast_values(values, 0, group_, "DDP model state");
    }
  }
  const bool looks_at_gradients = options_.weighting != Weighting::ranks || options_.non_finite != NonFinite::ignore;
  if (options_.lockstep.shards != 0) {
    NamedTensors tensors;
    for (const TrainedParameter& parameter : trained) tensors.emplace_back(parameter.name, parameter.tensor);
    sharded_ = std::make_unique<ShardedStep>(*module_, tensors, buffers, group_, options_.lockstep);
  } else if (group_.size() > 1 || looks_at_gradients || swap_ != nullptr) {
    reducer_ = Reducer::make(std::move(trained), group_, options_, swap_);
  }
}

bool DdpBase::is_ignored(const std::string& name) const { return contains(options_.ignored, name); }

std::vector<TrainedParameter> DdpBase::trained_parameters(const NamedTensors& parameters) const {
  const std::vector<at::Tensor> sparse = sparse_weights(*module_);
  std::vector<TrainedParameter> trained;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(tensor); };
    // A tensor that is registered under several names is one parameter.
    if (std::any_of(trained.begin(), trained.end(), [&](const auto& known) { return is_it(known.tensor); })) continue;
    if (GradientHook::watches(tensor) || BackwardWatch::watches(tensor)) throw wrapped_twice_error(name);
    const bool is_sparse = std::any_of(sparse.begin(), sparse.end(), is_it);
    trained.push_back({.name = name,
                       .tensor = tensor,
                       .sparse = is_sparse,
                       .delayed = contains(options_.delay_all_reduce_named_params, name)});
  }
  return trained;
}

void DdpBase::check_devices(const NamedTensors& parameters) {
  std::vector<at::Device> devices;
  for (const auto& [name, tensor] : parameters) {
    if (!devices.empty() && tensor.device().type() != devices.front().type()) {
      throw options_error("the module's parameters lie on different types of devices: " + parameters.front().first +
                          " on " + devices.front().str() + ", " + name + " on " + tensor.device().str());
    }
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  if (options_.device_ids.size() > 1) {
    throw options_error("device_ids has " + std::to_string(options_.device_ids.size()) +
                        " entries; one process drives one device, so start a process for each");
  }
  if (options_.device_ids.empty() && !options_.output_device) return;
  if (devices.empty() || devices.size() > 1 || devices.front().is_cpu()) {
    throw options_error(std::string("device_ids and output_device are for a module on one device that is not the CPU; "
                                    "this one lies on ") +
                        (devices.size() > 1 ? std::to_string(devices.size()) + " devices, and places its inputs itself"
                                            : std::string("the CPU")) +
                        ". Leave them unset");
  }
  input_device_ = devices.front();
}

void DdpBase::lower_buffers() {
  const auto dtype = options_.mixed_precision.buffer_dtype;
  if (!dtype) return;
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(*dtype));
  }
}

DdpBase::~DdpBase() = default;

std::vector<at::Tensor> DdpBase::parameters() const { return module_->parameters(); }
NamedTensors DdpBase::named_parameters() const { return pairs_of(module_->named_parameters()); }
std::vector<at::Tensor> DdpBase::buffers() const { return module_->buffers(); }
NamedTensors DdpBase::named_buffers() const { return pairs_of(module_->named_buffers()); }
std::ostream& operator<<(std::ostream& stream, const DdpBase& replica) {
  return stream << "DistributedDataParallel(" << *replica.module_ << ")";
}
void DdpBase::train(bool on) { module_->train(on); }
bool DdpBase::is_training() const { return module_->is_training(); }
void DdpBase::zero_grad() { module_->zero_grad(); }

NamedTensors DdpBase::state_dict(StateDictKeys keys) const {
  NamedTensors state;
  append_state(*module_, keys == StateDictKeys::module_prefix ? std::string(kPrefix) : "", state);
  return state;
}

void DdpBase::load_state_dict(const NamedTensors& state) {
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

ShardedStep& DdpBase::sharded() {
  if (sharded_ != nullptr) return *sharded_;
  throw Error(ErrorKind::invalid_argument, "lockstep mode is off; set .lockstep = {.shards = ...} in DdpOptions");
}

void DdpBase::set_weight(std::optional<double> weight) {
  if (weight && !(std::isfinite(*weight) && *weight >= 0)) {
    throw options_error("set_weight() got " + c10::str(*weight) +
                        "; a weight is how many samples or tokens a forward counts for: a finite number, 0 or more");
  }
  weight_ = weight;
}

double DdpBase::for_each_shard(const std::function<double(Shard)>& body) {
  ShardedStep& step = sharded();
  if (!synchronise_) {
    throw options_error(
        "for_each_shard() under no_sync(); to accumulate gradients make several backwards in the callback");
  }
  compare_parameters(sharded_steps_);
  const double loss = step.run(body);
  ++sharded_steps_;
  return loss;
}

ReducerStats DdpBase::stats() const {
  if (sharded_ != nullptr) {
    return {.backwards = sharded_->step(), .communication_seconds = sharded_->communication_seconds()};
  }
  return reducer_ == nullptr ? ReducerStats{} : reducer_->stats();
}

void DdpBase::register_comm_hook(CommHook hook) {
  if (!hook) throw options_error("register_comm_hook() got an empty hook");
  if (sharded_ != nullptr) throw options_error("lockstep mode takes no communication hook");
  if (reducer_ == nullptr) return;
  if (reducer_->has_hook()) throw options_error("a communication hook is registered already");
  if (reducer_->stats().backwards != 0) {
    throw options_error("register_comm_hook() comes after " + std::to_string(reducer_->stats().backwards) +
                        " backwards; call it before the first");
  }
  reducer_->set_hook(std::move(hook));
}

DdpLoggingData DdpBase::logging_data() const {
  DdpLoggingData data;
  data.rank = group_.rank();
  data.world_size = group_.size();
  data.backend_name = group_.transport();
  for (const auto& [name, tensor] : compared_) {
    if (!tensor.requires_grad()) continue;
    ++data.num_parameter_tensors;
    data.total_parameter_size_bytes += tensor.nbytes();
  }
  data.find_unused_parameters = options_.find_unused_parameters;
  data.static_graph = options_.static_graph;
  if (reducer_ == nullptr) return data;
  data.bucket_sizes = reducer_->bucket_bytes();
  data.has_rebuilt_buckets = reducer_->has_rebuilt_buckets();
  data.has_comm_hook = reducer_->has_hook();
  data.stats = reducer_->stats();
  return data;
}

ForwardScope DdpBase::begin_forward(const at::Tensor* input) {
  if (sharded_ != nullptr) sharded_->check_forward(is_training());
  if (reducer_ == nullptr) return ForwardScope(nullptr);
  const bool is_differentiable = at::GradMode::is_enabled() && !is_frozen();
  try {
    if (is_differentiable && synchronise_) {
      warn_of_equal_inputs(input);
      compare_parameters(reducer_->stats().backwards);
    }
    sync_buffers();
  } catch (const Error& error) {
    throw lone_forward_error(error);
  }
  if (!is_differentiable) {
    const bool is_within_backward = swap_ != nullptr && swap_->is_lowered();
    if (swap_ != nullptr) swap_->lower_for_evaluation();
    return ForwardScope(is_within_backward ? nullptr : swap_);
  }
  const JoinState join = join_state();
  const double samples = input != nullptr && input->dim() > 0 ? static_cast<double>(input->size(0)) : 1;
  const ForwardGraphs::Id forward = reducer_->begin_forward({.synchronise = synchronise_,
                                                             .silent = join.shadowing,
                                                             .weight = weight_.value_or(samples),
                                                             .over_active = join.over_active});
  return ForwardScope(reducer_->heap(), reducer_, forward);
}

// Whether no parameter wants a gradient now, as those of a GAN's discriminator while the generator learns.
bool DdpBase::is_frozen() const {
  return std::none_of(compared_.begin(), compared_.end(), [](const auto& one) { return one.second.requires_grad(); });
}

// Ranks that read the same data compute the same gradient several times, and nothing else shows it.
void DdpBase::warn_of_equal_inputs(const at::Tensor* input) {
  if (inputs_seen_ || group_.size() == 1) return;
  inputs_seen_ = true;
  if (input != nullptr && have_same_values(*input, group_) && group_.rank() == 0) {
    log_warning(
        "DistributedDataParallel: all ranks have given the same tensor to their first forward. If it is their data, "
        "they all compute the same: give each its own part, for example by a DistributedSampler");
  }
}

void DdpBase::compare_parameters(std::uint64_t backwards) {
  const auto every = static_cast<std::uint64_t>(options_.compare_parameters_every);
  if (every == 0 || group_.size() == 1 || backwards == compared_after_ || backwards % every != 0) return;
  compared_after_ = backwards;
  verify_same_values(compared_, group_, backwards);
}

at::Tensor DdpBase::converted(const at::Tensor& input) const {
  if (!input.defined()) return input;
  const at::Device device = input_device_.value_or(input.device());
  const at::ScalarType dtype = input_dtype_ && input.is_floating_point() ? *input_dtype_ : input.scalar_type();
  return input.to(device, dtype);
}

at::Tensor DdpBase::delivered(const at::Tensor& output) const {
  if (!options_.output_device || !output.defined()) return output;
  return output.to(at::Device(output.device().type(), static_cast<at::DeviceIndex>(*options_.output_device)));
}

void DdpBase::sync_buffers() {
  if (!options_.forward_sync_buffers || buffers_.empty() || !synchronise_ || group_.size() == 1) return;
  // In evaluation buffers do not change, so ranks may evaluate different numbers of batches.
  if (!is_training() && buffers_synced_) return;
  if (!buffers_broadcast_) buffers_broadcast_.emplace(buffers_);
  buffers_broadcast_->run(0, group_, "DDP buffers");
  buffers_synced_ = !is_training();
}

void DdpBase::watch_tensor(const ForwardScope& scope, const at::Tensor& output) {
  if (output.defined()) scope.reducer_->watch(scope.forward_, output);
}

}  // namespace lockstep
