#include "lockstep/train/ddp/backward_averager.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/believed.h"
#include "lockstep/train/ddp/buckets/bucket_plan.h"
#include "lockstep/train/ddp/checks/all_finite.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep::internal {
namespace {

std::span<std::uint8_t> bytes_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

BackwardAverager::BackwardAverager(const TrainedParameters& parameters, ProcessGroup group, const DdpOptions& options,
                                   StepTimer& timer, std::uint64_t wrapper)
    : parameters_(parameters),
      group_(std::move(group)),
      options_(options),
      timer_(timer),
      report_name_(name_of_backward("DDP report", {}, wrapper)),
      unused_name_(name_of_backward("DDP unused parameters", {}, wrapper)),
      weights_name_(name_of_backward("DDP weights", {}, wrapper)),
      finite_name_(name_of_backward("DDP finite gradients", {}, wrapper)),
      buckets_(parameters_, options_, wrapper),
      contributions_(parameters_, group_, options_.weighting, wrapper),
      learned_(parameters_.size(), options_),
      arrivals_(parameters_.size()) {
  for (const TrainedParameter& parameter : parameters_) parameter_bytes_ += parameter.tensor.nbytes();
}

void BackwardAverager::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  buckets_.form(reversed_order(parameters_.size()), hook_);
}

void BackwardAverager::begin(const ForwardNote& note, const ForwardGraphs& forwards, const ModelHooks& hooks) {
  timer_.backward_begins();
  note_ = note;
  std::ranges::fill(arrivals_, 0);
  buckets_.reset();
  finite_.clear();
  learned_.begin_backward();
  count_expected(hooks);
  contributions_.begin_backward(note, forwards.found());
  if (!note_.synchronise) return;
  backward_ = forwards.number();
  begin_synchronised(hooks);
}

void BackwardAverager::count_expected(const ModelHooks& hooks) {
  if (options_.static_graph) {
    expected_ = learned_.arrivals();
  } else if (options_.mixed_precision.param_dtype) {
    // A parameter that the loss uses directly is in the graph twice: also in its own type.
    expected_.resize(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) expected_[i] = hooks.places_in_current_graph(i);
  }
}

// Parameters for which no gradient will come are ready from the beginning.
void BackwardAverager::begin_synchronised(const ModelHooks& hooks) {
  if (learned_.is_first()) return;
  if (options_.static_graph) {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i] == 0) buckets_.set_ready(i, false);
    }
    return;
  }
  if (!options_.find_unused_parameters) return;
  report_.used = contributions_.used();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_in_graph = hooks.places_in_current_graph(i) != 0;
    if (is_in_graph && !note_.joined) report_.used[i] = true;
    if (!is_in_graph) buckets_.set_ready(i, false);
  }
  if (!options_.skip_all_reduce_unused_params) return;
  report_.weight = 0;
  const CallOptions call{.name = unused_name_, .number = backward_};
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  needed_ = exchange(call).used;
}

void BackwardAverager::arrived_locally(std::size_t parameter, const at::Tensor& added) {
  contributions_.note_local_gradient(parameter, added.defined());
}

void BackwardAverager::arrived(std::size_t parameter, const at::Tensor& added) {
  own_gradient(parameter, added);
  if (added.defined()) contributions_.note_gradient(parameter);
  if (!note_.synchronise) return;
  count_arrival(parameter);
  if (learned_.is_first() || waits_for_order()) return;
  if (!expected_.empty() && arrivals_[parameter] < expected_[parameter]) return;
  check_gradient(parameter);
  buckets_.set_ready(parameter, true);
  const bool is_complete = buckets_.of(parameter).is_ready();
  if (!is_complete && !buckets_.has_launched()) return;
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  if (is_complete) launch_ready(&added);
  if (buckets_.has_launched()) group_.poll();
}

void BackwardAverager::count_arrival(std::size_t parameter) {
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

// autograd may give the same memory to several parameters, or to a parameter and to the next computation. A change of
// one gradient in place, by a reduction, an accumulation or a clipping, must not change the others.
void BackwardAverager::own_gradient(std::size_t parameter, const at::Tensor& added) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined() || !added.defined() || !gradient.has_storage() || !added.has_storage()) return;
  const bool is_taken_over = gradient.storage().is_alias_of(added.storage());
  if (!is_taken_over || owns_gradient(gradient, &added)) return;
  const at::NoGradGuard no_grad;
  gradient = gradient.clone();
}

void BackwardAverager::launch_ready(const at::Tensor* added) {
  const Launch launch{.group = group_,
                      .backward = backward_,
                      .added = added,
                      .instead = contributions_.sent_instead(),
                      .finite = options_.non_finite == NonFinite::ignore ? nullptr : &finite_,
                      .is_weighted = contributions_.is_weighted()};
  buckets_.launch_ready(launch, needed_);
}

std::optional<Error> BackwardAverager::finish() {
  std::optional<Error> dropped;
  if (note_.synchronise) {
    dropped = average();
  } else {
    contributions_.end_local();
  }
  timer_.backward_ends(note_.synchronise ? StepTimer::Gradients::averaged : StepTimer::Gradients::local);
  return dropped;
}

// The error that backward() throws although the reduction succeeded.
std::optional<Error> BackwardAverager::average() {
  const StepTimer::Communication communicates(timer_, stats_.communication_seconds);
  if (waits_for_order()) form_buckets();
  complete_buckets();
  const JointReport* joint = exchange_reports();
  const Finish finish = finish_of(joint);
  buckets_.finish(finish);
  contributions_.end_averaged(finish.used);
  stats_.copied_bytes += buckets_.copied_bytes();
  learned_.learn_use(arrivals_, joint == nullptr ? nullptr : &joint->used);
  form_buckets();
  stats_.reduced_bytes += parameter_bytes_;
  ++stats_.backwards;
  needed_.clear();
  return options_.non_finite == NonFinite::ignore ? std::optional<Error>() : drop_if_not_finite();
}

// A hook's state belongs to buckets. So that a resumed run begins with the buckets of the earlier run, the first
// backward with a hook sends nothing before these are known.
bool BackwardAverager::waits_for_order() const { return hook_ && learned_.awaits_order(); }

void BackwardAverager::form_buckets() {
  if (const auto order = learned_.learn_order(group_)) buckets_.form(*order, hook_);
}

void BackwardAverager::roll_back() {
  contributions_.roll_back();
  needed_.clear();
}

// Other ranks may have received the reductions that this one started before its backward failed, or still wait for
// them: so they are finished on all ranks that failed, and none is kept.
void BackwardAverager::drain() { buckets_.drop(group_); }

// Backward has given all its gradients.
void BackwardAverager::complete_buckets() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (buckets_.is_ready(i)) continue;
    if ((learned_.is_first() || hook_) && arrivals_[i] != 0) check_gradient(i);
    if (learned_.is_first()) {
      // any gradients are right
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

const JointReport* BackwardAverager::exchange_reports() {
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph && needed_.empty();
  const bool asks_use = learned_.is_first() || finds_unused;
  if (!asks_use && !contributions_.is_weighted()) return nullptr;
  report_.weight = contributions_.weight();
  report_.is_uniform = contributions_.is_uniform();
  report_.used.clear();
  if (asks_use) report_.used = contributions_.used();
  const CallOptions call{.name = report_name_, .number = backward_};
  return &exchange(call);
}

const JointReport& BackwardAverager::exchange(const CallOptions& call) {
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

Finish BackwardAverager::finish_of(const JointReport* joint) {
  Finish finish{.group = group_};
  if (joint != nullptr && !joint->used.empty()) finish.used = &joint->used;
  if (!needed_.empty()) finish.used = &needed_;
  if (!learned_.used().empty()) finish.used = &learned_.used();
  if (!contributions_.is_weighted()) return finish;
  if (joint->is_uniform) {
    if (joint->weight > 0) finish.factor = group_.size() / joint->weight;
  } else {
    exchange_weights();
    finish.factors = &factors_;
  }
  return finish;
}

// If the program has set some gradients to zero in the middle of an accumulation, and not the others.
void BackwardAverager::exchange_weights() {
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const at::Tensor mine = at::empty({count}, at::kDouble), told = at::empty({group_.size() * count}, at::kDouble);
  for (std::size_t i = 0; i < parameters_.size(); ++i) mine.mutable_data_ptr<double>()[i] = contributions_.weight(i);
  if (group_.size() == 1) {
    told.copy_(mine);
  } else {
    group_.all_gather_into(told, mine, {.name = weights_name_, .number = backward_});
  }
  const double* weights = told.const_data_ptr<double>();
  factors_.assign(parameters_.size(), 0);
  believed(group_, [&] {
    for (int rank = 0; rank < group_.size(); ++rank) {
      for (double& sum : factors_) sum += checked_weight(*weights++, "weight of a gradient", {"weights", rank});
    }
  });
  for (double& factor : factors_) factor = factor > 0 ? group_.size() / factor : 1;
}

// Of the gradients that this rank has sent, which show the origin, and of the optimizer's, after every sum and
// conversion.
std::optional<Error> BackwardAverager::drop_if_not_finite() {
  report_.weight = 0;
  report_.used.clear();
  FiniteCheck averages;
  for (std::size_t i = 0; i < parameters_.size() && !finite_.has_found() && !averages.has_found(); ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (gradient.defined()) averages.add(gradient.is_sparse() ? gradient._values() : gradient, i);
  }
  const auto [sent, averaged] = FiniteCheck::ask(finite_, averages);
  report_.non_finite = sent ? sent : averaged;
  report_.is_of_average = !sent && averaged;
  const JointReport& joint = exchange({.name = finite_name_, .number = backward_});
  report_.non_finite.reset();
  report_.is_of_average = false;
  return joint.non_finite.empty() && !joint.average ? std::optional<Error>() : drop_gradients(joint);
}

std::optional<Error> BackwardAverager::drop_gradients(const JointReport& joint) {
  for (const TrainedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  contributions_.forget();
  ++stats_.skipped_steps;
  std::vector<std::pair<int, std::string>> where;
  for (const auto& [rank, index] : joint.non_finite) where.emplace_back(rank, parameters_[index].name);
  Error error = where.empty() ? overflow_error(group_.rank(), parameters_[*joint.average].name)
                              : non_finite_error(group_.rank(), where);
  if (options_.non_finite == NonFinite::fail) return error;
  if (group_.rank() == 0) log_warning(error.what());
  return {};
}

void BackwardAverager::check_gradient(std::size_t parameter) const {
  const TrainedParameter& one = parameters_[parameter];
  const at::Tensor& gradient = one.tensor.grad();
  if (!gradient.defined()) return;  // a function has given none: zeros, as in PyTorch
  const char* problem = nullptr;
  if ((gradient.layout() != at::kStrided) != one.sparse) {
    problem = one.sparse ? "is dense, but its module was created with sparse gradients"
                         : "is sparse, but no module was created with sparse gradients";
  } else if (gradient.scalar_type() != one.tensor.scalar_type() && !options_.mixed_precision.param_dtype) {
    problem = "has another dtype than the parameter";
  }
  if (problem != nullptr) throw_on_all_ranks(group_, unsupported_gradient_error(group_.rank(), one.name, problem));
}

}  // namespace lockstep::internal
