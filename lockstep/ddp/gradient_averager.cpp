#include "lockstep/ddp/gradient_averager.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/ddp/buckets/bucket_plan.h"
#include "lockstep/ddp/checks/ddp_errors.h"
#include "lockstep/group/believed.h"

namespace lockstep::internal {
namespace {

std::span<std::uint8_t> bytes_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

GradientAverager::GradientAverager(const TrainedParameters& parameters, ProcessGroup group, const DdpOptions& options,
                                   StepTimer& timer, std::uint64_t wrapper)
    : parameters_(parameters),
      group_(std::move(group)),
      options_(options),
      timer_(timer),
      report_name_(name_of_backward("DDP report", {}, wrapper)),
      unused_name_(name_of_backward("DDP unused parameters", {}, wrapper)),
      buckets_(parameters_, options_, wrapper),
      weights_(parameters_, group_, options_.weighting),
      learned_(parameters_.size(), options_),
      arrivals_(parameters_.size()),
      used_(parameters_.size()),
      used_before_(parameters_.size()) {
  for (const TrainedParameter& parameter : parameters_) parameter_bytes_ += parameter.tensor.nbytes();
}

void GradientAverager::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  buckets_.form(reversed_order(parameters_.size()), hook_);
}

void GradientAverager::begin(const ForwardNote& note, const ParameterHooks& hooks) {
  timer_.backward_begins();
  note_ = note;
  for (std::size_t i = 0; i < parameters_.size(); ++i) used_[i] = used_[i] && parameters_[i].tensor.grad().defined();
  used_before_ = used_;
  std::ranges::fill(arrivals_, 0);
  buckets_.reset();
  learned_.begin_backward();
  count_expected(hooks);
  weights_.begin_backward(note);
  if (note_.synchronise) begin_synchronised(hooks);
}

void GradientAverager::count_expected(const ParameterHooks& hooks) {
  if (options_.static_graph) {
    expected_ = learned_.arrivals();
  } else if (options_.mixed_precision.param_dtype) {
    // A parameter that the loss uses directly is in the graph twice: in its own type too.
    expected_.resize(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) expected_[i] = hooks.places_in_current_graph(i);
  }
}

// Parameters for which no gradient will come are ready from the beginning.
void GradientAverager::begin_synchronised(const ParameterHooks& hooks) {
  ++backward_;
  if (learned_.is_first()) return;
  if (options_.static_graph) {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i] == 0) buckets_.set_ready(i, false);
    }
    return;
  }
  if (!options_.find_unused_parameters) return;
  report_.used = used_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_in_graph = hooks.places_in_current_graph(i) != 0;
    if (is_in_graph) report_.used[i] = true;
    if (!is_in_graph) buckets_.set_ready(i, false);
  }
  if (!options_.skip_all_reduce_unused_params) return;
  report_.weight = 0;
  report_.non_finite.reset();
  if (note_.joined) report_.used.assign(report_.used.size(), false);
  const CallOptions call{.name = unused_name_, .number = backward_};
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  needed_ = exchange(call).used;
}

void GradientAverager::arrived_locally(std::size_t parameter, const at::Tensor& added) {
  weights_.note_local_gradients();
  if (added.defined()) used_[parameter] = true;  // accumulated, as under no_sync()
}

void GradientAverager::arrived(std::size_t parameter, const at::Tensor& added) {
  own_gradient(parameter, added);
  if (added.defined()) used_[parameter] = true;
  if (!note_.synchronise) return;
  count_arrival(parameter);
  if (learned_.is_first()) return;
  if (!expected_.empty() && arrivals_[parameter] < expected_[parameter]) return;
  check_gradient(parameter);
  buckets_.set_ready(parameter, true);
  const bool is_complete = buckets_.of(parameter).is_ready();
  if (!is_complete && !buckets_.has_launched()) return;
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  if (is_complete) launch_ready(&added);
  if (buckets_.has_launched()) group_.poll();
}

void GradientAverager::count_arrival(std::size_t parameter) {
  const int count = ++arrivals_[parameter];
  if (count == 1) learned_.note_arrival(parameter);
  if (learned_.is_first()) return;
  const std::string& name = parameters_[parameter].name;
  if (options_.static_graph && count > expected_[parameter]) {
    throw_on_all_ranks(group_, graph_changed_error(group_.rank(), name, count, expected_[parameter]));
  }
  if (buckets_.of(parameter).is_launched()) {
    throw_on_all_ranks(group_, late_gradient_error(group_.rank(), name, count == 1));
  }
}

// autograd may give the same memory to several parameters, or to a parameter and to what is computed next. Whoever
// changes one gradient in place, by a reduction, an accumulation or a clipping, must not change the others.
void GradientAverager::own_gradient(std::size_t parameter, const at::Tensor& added) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined() || !added.defined() || !gradient.has_storage() || !added.has_storage()) return;
  const bool is_taken_over = gradient.storage().is_alias_of(added.storage());
  if (!is_taken_over || owns_gradient(gradient, &added)) return;
  const at::NoGradGuard no_grad;
  gradient = gradient.clone();
}

void GradientAverager::launch_ready(const at::Tensor* added) {
  const Launch launch{.group = group_,
                      .backward = backward_,
                      .added = added,
                      .joined = note_.joined,
                      .look_for_non_finite = options_.non_finite != NonFinite::ignore};
  buckets_.launch_ready(launch, needed_);
}

std::optional<Error> GradientAverager::finish() {
  std::optional<Error> dropped;
  if (note_.synchronise) dropped = average();
  timer_.backward_ends(note_.synchronise ? StepTimer::Gradients::averaged : StepTimer::Gradients::local);
  return dropped;
}

// The error that backward() throws although all is well.
std::optional<Error> GradientAverager::average() {
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  complete_buckets();
  const JointReport* joint = exchange_reports();
  buckets_.finish(finish_of(joint));
  weights_.add_set_aside();
  stats_.copied_bytes += buckets_.copied_bytes();
  if (auto order = learned_.learn(arrivals_, joint == nullptr ? nullptr : &joint->used, group_)) {
    buckets_.form(*order, hook_);
  }
  stats_.reduced_bytes += parameter_bytes_;
  ++stats_.backwards;
  std::fill(used_.begin(), used_.end(), false);
  weights_.begin_new_sum();
  needed_.clear();
  if (joint != nullptr && !joint->non_finite.empty()) return drop_gradients(*joint);
  return {};
}

void GradientAverager::roll_back() {
  weights_.roll_back();
  used_ = used_before_;
  needed_.clear();
}

// Other ranks may have got what this one had started before its backward failed, or wait for it still: so it is
// finished on all ranks that have failed alike, and none of it is kept.
void GradientAverager::drain() { buckets_.drop(group_); }

// Backward has given all the gradients that it will give.
void GradientAverager::complete_buckets() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (buckets_.is_ready(i)) continue;
    if (learned_.is_first()) {
      if (arrivals_[i] != 0) check_gradient(i);
    } else if (options_.static_graph) {
      throw_on_all_ranks(group_, graph_changed_error(group_.rank(), parameters_[i].name, arrivals_[i], expected_[i]));
    } else if (!options_.find_unused_parameters && arrivals_[i] == 0) {
      missing.push_back(parameters_[i].name);
      continue;
    }
    buckets_.set_ready(i, arrivals_[i] != 0);
  }
  // Ranks that did use these parameters wait for this one.
  if (!missing.empty()) throw_on_all_ranks(group_, no_gradient_error(group_.rank(), missing));
  launch_ready(nullptr);
}

const JointReport* GradientAverager::exchange_reports() {
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph && needed_.empty();
  const bool asks_use = learned_.is_first() || finds_unused;
  if (!asks_use && !weights_.is_weighted() && options_.non_finite == NonFinite::ignore) return nullptr;
  report_.weight = weights_.sum();
  report_.non_finite = buckets_.non_finite();
  report_.used.clear();
  if (asks_use) report_.used = used_;
  if (note_.joined) report_.used.assign(report_.used.size(), false);
  const CallOptions call{.name = report_name_, .number = backward_};
  return &exchange(call);
}

const JointReport& GradientAverager::exchange(const CallOptions& call) {
  const auto length = static_cast<std::int64_t>(report_bytes(report_.used.size()));
  if (!sent_.defined() || sent_.numel() != length) {
    sent_ = at::empty({length}, at::kByte);
    told_ = at::empty({group_.size() * length}, at::kByte);
  }
  encode_report(report_, bytes_of(sent_));
  if (group_.size() == 1) {
    std::memcpy(told_.mutable_data_ptr(), sent_.const_data_ptr(), sent_.nbytes());
  } else {
    group_.all_gather_into(told_, sent_, call);
  }
  believed(group_, [&] { join_reports(bytes_of(told_), report_.used.size(), parameters_.size(), joint_); });
  return joint_;
}

Finish GradientAverager::finish_of(const JointReport* joint) const {
  Finish finish{.group = group_};
  if (joint != nullptr && !joint->used.empty()) finish.used = &joint->used;
  if (!needed_.empty()) finish.used = &needed_;
  if (!learned_.used().empty()) finish.used = &learned_.used();
  if (weights_.is_weighted() && joint->weight > 0) finish.factor = group_.size() / joint->weight;
  return finish;
}

std::optional<Error> GradientAverager::drop_gradients(const JointReport& joint) {
  for (const TrainedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  ++stats_.skipped_steps;
  std::vector<std::pair<int, std::string>> where;
  for (const auto& [rank, index] : joint.non_finite) where.emplace_back(rank, parameters_[index].name);
  Error error = non_finite_error(group_.rank(), where);
  if (options_.non_finite == NonFinite::fail) return error;
  if (group_.rank() == 0) log_warning(error.what());
  return {};
}

void GradientAverager::check_gradient(std::size_t parameter) const {
  const TrainedParameter& one = parameters_[parameter];
  const at::Tensor& gradient = one.tensor.grad();
  if (!gradient.defined()) return;  // a function has given none: zeros, as in PyTorch
  const char* problem = nullptr;
  if ((gradient.layout() != at::kStrided) != one.sparse) {
    problem = one.sparse ? "is dense, though its module was made for sparse ones"
                         : "is sparse, though no module was made for that";
  } else if (gradient.scalar_type() != one.tensor.scalar_type() && !options_.mixed_precision.param_dtype) {
    problem = "has another dtype than the parameter";
  }
  if (problem != nullptr) throw_on_all_ranks(group_, unsupported_gradient_error(group_.rank(), one.name, problem));
}

}  // namespace lockstep::internal
