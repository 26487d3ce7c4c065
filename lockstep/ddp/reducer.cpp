#include "lockstep/ddp/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/ddp/checks/ddp_errors.h"
#include "lockstep/group/believed.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/group/uncaught.h"

namespace lockstep {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25;
constexpr double kDefaultFirstMb = 1;

std::vector<std::size_t> caps_of(const DdpOptions& options) {
  if (options.bucketing == Bucketing::off) return {0};
  std::vector<double> mib = options.bucket_cap_mb_list;
  if (mib.empty() && options.bucket_cap_mb) mib = {*options.bucket_cap_mb};
  if (mib.empty()) mib = {kDefaultFirstMb, kDefaultCapMb};
  std::vector<std::size_t> bytes;
  for (const double cap : mib) bytes.push_back(static_cast<std::size_t>(cap * kMiB));
  return bytes;
}

std::vector<PlannedParameter> planned(const std::vector<TrainedParameter>& parameters) {
  std::vector<PlannedParameter> result;
  for (const auto& [name, tensor, sparse, delayed] : parameters) {
    result.push_back({.bytes = static_cast<std::size_t>(tensor.nbytes()),
                      .dtype = dtype_of(tensor, "DistributedDataParallel, parameter " + name),
                      .device = tensor.get_device(),
                      .sparse = sparse,
                      .delayed = delayed});
  }
  return result;
}

// Backward begins at the model's end.
std::vector<std::size_t> reversed_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

// Adds the time of a scope to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), start_(steady_clock().now()) {}
  ~Timed() { sum_ += seconds(steady_clock().now() - start_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& sum_;
  TimePoint start_;
};

}  // namespace

std::shared_ptr<Reducer> Reducer::make(std::vector<TrainedParameter> parameters, ProcessGroup group,
                                       const DdpOptions& options, std::shared_ptr<PrecisionCast> swap) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(parameters), std::move(group), options, std::move(swap)));
  const auto weak = reducer->weak_from_this();
  reducer->forwards_.emplace([weak](ForwardGraphs::Id forward) {
    if (const auto self = weak.lock()) self->output_reached(forward);
  });
  const auto ended = [weak] {
    if (const auto self = weak.lock()) self->end_backward();
  };
  const auto lost = [weak] {
    if (const auto self = weak.lock()) self->backward_lost();
  };
  reducer->end_.emplace(ended, lost);
  const auto differentiated = [weak] {
    if (const auto self = weak.lock()) self->inputs_differentiated();
  };
  reducer->end_of_inputs_gradients_.emplace(differentiated, differentiated);
  reducer->install_hooks();
  return reducer;
}

Reducer::Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, const DdpOptions& options,
                 std::shared_ptr<PrecisionCast> swap)
    : group_(std::move(group)),
      options_(options),
      parameters_(std::move(parameters)),
      swap_(std::move(swap)),
      planned_(planned(parameters_)),
      places_(parameters_.size()),
      failed_([this](const char* text) { group_.note_failure("backward of DistributedDataParallel", text); }),
      fired_(parameters_.size()),
      set_aside_(parameters_.size()),
      used_(parameters_.size()),
      used_before_(parameters_.size()),
      learning_(options.static_graph) {
  arrivals_.reserve(parameters_.size());
  for (const TrainedParameter& parameter : parameters_) parameter_bytes_ += parameter.tensor.nbytes();
  form_buckets(reversed_order(parameters_.size()));
}

Reducer::~Reducer() {
  if (swap_ != nullptr) swap_->on_change(nullptr);
}

void Reducer::form_buckets(const std::vector<std::size_t>& order) {
  buckets_.clear();
  for (const auto& indices : plan_buckets(planned_, order, caps_of(options_))) {
    std::vector<BucketMember> members;
    for (const std::size_t index : indices) {
      places_[index] = {buckets_.size(), members.size()};
      members.push_back({.index = index, .name = parameters_[index].name, .parameter = parameters_[index].tensor});
    }
    buckets_.push_back(make_bucket(buckets_.size(), std::move(members)));
  }
  std::string list;
  for (const auto& bucket : buckets_) {
    list += fmt::format("{}{} KiB in {}", list.empty() ? "" : ", ", bucket->bytes() / 1024, bucket->members().size());
  }
  log_debug(fmt::format("DistributedDataParallel: {} parameters, {} bucket{}, in this order: {}", parameters_.size(),
                        buckets_.size(), buckets_.size() == 1 ? "" : "s", list));
}

std::unique_ptr<GradientBucket> Reducer::make_bucket(std::size_t index, std::vector<BucketMember> members) const {
  if (planned_[members.front().index].sparse) return make_sparse_bucket(index, std::move(members));
  const MixedPrecision& mixed = options_.mixed_precision;
  const auto dtype = mixed.reduce_dtype ? mixed.reduce_dtype : mixed.param_dtype;
  const bool changes_dtype = dtype && members.front().parameter.is_floating_point();
  if (!hook_ && !changes_dtype && members.front().parameter.is_cpu()) {
    return make_in_place_bucket(index, std::move(members));
  }
  return make_flat_bucket(index, std::move(members), hook_, changes_dtype ? dtype : std::nullopt);
}

// A parameter that changes its type has a place for gradients in each of them.
void Reducer::install_hooks() {
  const auto hook = [this](std::size_t i) {
    return GradientHook(parameters_[i].tensor, [weak = weak_from_this(), i](const at::Tensor& added) {
      if (const auto self = weak.lock()) self->gradient_arrived(i, added);
    });
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) hooks_.push_back(hook(i));
  if (swap_ != nullptr) {
    swap_->lower();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (swap_->swaps(parameters_[i].tensor)) low_hooks_.push_back({i, hook(i)});
    }
    swap_->on_change([this](bool is_low) {
      for (const LowHook& low : low_hooks_) {
        (is_low ? low.hook : hooks_[low.parameter]).attach(parameters_[low.parameter].tensor);
      }
    });
    swap_->restore();
  }
  if (options_.weighting != Weighting::samples) return;
  for (const TrainedParameter& parameter : parameters_) {
    scales_.emplace_back(parameter.tensor, [weak = weak_from_this()] {
      const auto self = weak.lock();
      return self == nullptr ? 1.0 : self->gradient_factor();
    });
  }
}

void Reducer::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  form_buckets(reversed_order(parameters_.size()));
}

BackwardAction Reducer::take(BackwardEvent event) {
  const auto [state, action] = next(state_, event);
  if (action == BackwardAction::refuse) throw misplaced_event_error(group_.rank(), to_string(event), to_string(state_));
  if (action == BackwardAction::drain || action == BackwardAction::drain_and_start) drain();
  state_ = state;
  return action;
}

ForwardGraphs::Id Reducer::begin_forward(const ForwardNote& note) {
  failed_.claim_thread();
  if (is_lost_elsewhere_ && is_lost_elsewhere_.exchange(false)) abandon();
  if (std::exchange(has_stray_gradients_, false)) fail(stray_gradients_error(group_.rank()));
  take(BackwardEvent::forward);
  if (options_.weighting == Weighting::samples && !unit_weight_) {
    const at::Tensor weight = at::tensor({note.weight}, at::kDouble);
    group_.broadcast(weight, 0, {.name = "DDP unit of weight"});
    const double told = believed(group_, [&] {
      return checked_weight(weight.item<double>(), "weight", {"first forward", 0});
    });
    unit_weight_ = told == 0 ? 1 : told;
  }
  if (swap_ != nullptr) swap_->lower();
  return forwards_->begin(note);
}

void Reducer::watch(ForwardGraphs::Id forward, const at::Tensor& output) { forwards_->watch(forward, output); }

void Reducer::end_forward(ForwardGraphs::Id forward, bool has_returned) {
  forwards_->end(forward, has_returned);
  restore_precision();
}

// Within a backward, or a forward that calls its wrapper again, parameters stay as it needs them.
void Reducer::restore_precision() {
  const bool is_in_use = state_ == BackwardState::collecting || forwards_->is_within_forward();
  if (swap_ != nullptr && !is_in_use) swap_->restore();
}

void Reducer::output_reached(ForwardGraphs::Id forward) { is_in_own_backward(forward); }

// Whether the backward that runs is to be collected. The first sign of such a one starts it.
bool Reducer::is_in_own_backward(std::optional<ForwardGraphs::Id> reached) {
  if (is_lost_elsewhere_ && is_lost_elsewhere_.exchange(false)) abandon();
  if (state_ == BackwardState::collecting) return true;
  const int backward = current_backward();
  if (!reached && backward == stray_backward_) return false;
  const auto accumulates = [](const GradientHook& hook) { return hook.is_accumulated_now(); };
  const bool is_for_parameters =
      std::any_of(hooks_.begin(), hooks_.end(), accumulates) ||
      std::any_of(low_hooks_.begin(), low_hooks_.end(), [&](const LowHook& low) { return accumulates(low.hook); });
  if (!is_for_parameters) {
    if (reached) differentiate_inputs(*reached);
    return false;
  }
  const std::optional<ForwardNote> note = forwards_->note_of_current_backward(reached);
  if (note) start(*note);
  if (!note) stray_backward_ = backward;
  return note.has_value();
}

// autograd::grad goes through a forward: no parameter gets a gradient.
void Reducer::differentiate_inputs(ForwardGraphs::Id forward) {
  forwards_->was_differentiated(forward);
  const bool lowers = swap_ != nullptr && !swap_->is_lowered();
  if (lowers) swap_->lower_again();
  if (lowers || at::GradMode::is_enabled()) end_of_inputs_gradients_->await();
}

void Reducer::inputs_differentiated() {
  forwards_->close_ranges();
  restore_precision();
}

void Reducer::start(const ForwardNote& note) {
  take(BackwardEvent::begin);
  thread_ = std::this_thread::get_id();
  for (std::size_t i = 0; i < parameters_.size(); ++i) used_[i] = used_[i] && parameters_[i].tensor.grad().defined();
  used_before_ = used_;
  weight_before_ = weight_;
  end_->await();
  note_ = note;
  has_stray_gradients_ = false;
  launched_ = 0;
  std::fill(fired_.begin(), fired_.end(), 0);
  for (const auto& bucket : buckets_) bucket->reset();
  if (!rebuilt_) arrivals_.clear();
  arena_scope_.emplace(heap());
  if (swap_ != nullptr) swap_->lower_again();
  count_expected();
  if (options_.weighting == Weighting::samples) {
    if (!note_.silent) weight_ += note_.weight / unit_weight_.value();
  } else {
    weight_ = note_.silent ? 0 : 1;
  }
  if (std::exchange(is_first_, false) && is_weighted()) set_aside_gradients();
  if (note_.synchronise) begin_synchronised();
}

// How often each parameter's gradient will arrive.
void Reducer::count_expected() {
  if (options_.static_graph) {
    expected_ = in_first_;
    return;
  }
  if (swap_ == nullptr) return;
  // A parameter that the loss uses directly is in the graph twice: in its own type too.
  expected_.assign(parameters_.size(), 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) expected_[i] = hooks_[i].is_in_current_graph() ? 1 : 0;
  for (const LowHook& low : low_hooks_) expected_[low.parameter] += low.hook.is_in_current_graph() ? 1 : 0;
}

// Averages of weighted gradients are multiplied at the end. What was averaged before must not be.
void Reducer::set_aside_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (has_local_gradients_ && !gradient.is_sparse() && gradient.count_nonzero().item<std::int64_t>() != 0) {
      fail(unweighted_gradient_error(group_.rank(), parameters_[i].name));
    }
    set_aside_[i] = std::exchange(gradient, at::Tensor());
  }
}

void Reducer::add_set_aside() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!set_aside_[i].defined()) continue;
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    const at::Tensor before = std::exchange(set_aside_[i], at::Tensor());
    gradient = gradient.defined() ? before.add_(gradient) : before;
  }
}

// Parameters for which no gradient will come are ready from the beginning.
void Reducer::begin_synchronised() {
  ++backward_;
  if (learning_) return;
  for (std::size_t i = 0; options_.static_graph && i < in_first_.size(); ++i) {
    if (in_first_[i] == 0) set_ready(i, false);
  }
  if (!options_.find_unused_parameters || options_.static_graph) return;
  report_.used = used_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    bool is_in_graph = hooks_[i].is_in_current_graph();
    if (swap_ != nullptr) is_in_graph = expected_[i] != 0;
    if (is_in_graph) report_.used[i] = true;
    if (!is_in_graph) set_ready(i, false);
  }
  if (options_.skip_all_reduce_unused_params) {
    report_.weight = 0;
    report_.non_finite.reset();
    if (note_.silent) report_.used.assign(report_.used.size(), false);
    const CallOptions call{.name = "DDP unused parameters of backward", .number = backward_};
    reached_ = reports_.exchange(report_, parameters_.size(), group_, call).used;
  }
}

void Reducer::set_ready(std::size_t parameter, bool fired) {
  bucket_of(parameter).set_ready(places_[parameter].member, fired);
}

double Reducer::gradient_factor() { return is_in_own_backward({}) ? note_.weight / unit_weight_.value() : 1.0; }

void Reducer::gradient_arrived(std::size_t parameter, const at::Tensor& added) {
  if (!is_in_own_backward({})) {
    has_local_gradients_ = true;
    const bool may_be_missed = take(BackwardEvent::stray_gradient) == BackwardAction::note_stray;
    if (may_be_missed && forwards_->may_have_been_passed_by()) has_stray_gradients_ = true;
    if (added.defined()) used_[parameter] = true;  // accumulated, as under no_sync()
    return;
  }
  take(BackwardEvent::gradient);
  own_gradient(parameter, added);
  if (added.defined()) used_[parameter] = true;
  if (!note_.synchronise) return;
  const int count = ++fired_[parameter];
  if (count == 1 && !rebuilt_) arrivals_.push_back(parameter);
  if (learning_) return;
  const std::string& name = parameters_[parameter].name;
  GradientBucket& bucket = bucket_of(parameter);
  const int expected = expected_.empty() ? 1 : expected_[parameter];
  if (options_.static_graph && count > expected) {
    fail(graph_changed_error(group_.rank(), name, count, expected));
  }
  if (bucket.is_launched()) fail(late_gradient_error(group_.rank(), name, count == 1));
  if (count < expected) return;
  check_gradient(parameter);
  set_ready(parameter, true);
  const bool complete = bucket.is_ready();
  if (!complete && launched_ == 0) return;
  const Timed timed(stats_.communication_seconds);
  if (complete) launch_ready_buckets(&added);
  if (launched_ != 0 && group_.shares_memory()) {
    group_.drive([](ArenaEngine& engine) { engine.poll(); });
  }
}

// autograd may give the same memory to several parameters, or to a parameter and to what is computed next. Whoever
// changes one gradient in place, by a reduction, an accumulation or a clipping, must not change the others.
void Reducer::own_gradient(std::size_t parameter, const at::Tensor& added) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined() || !added.defined() || !gradient.has_storage() || !added.has_storage()) return;
  const bool is_taken_over = gradient.storage().is_alias_of(added.storage());
  if (!is_taken_over || owns_gradient(gradient, &added)) return;
  const at::NoGradGuard no_grad;
  gradient = gradient.clone();
}

bool Reducer::is_skipped(const GradientBucket& bucket) const {
  if (reached_.empty()) return false;
  return std::none_of(bucket.members().begin(), bucket.members().end(),
                      [&](const BucketMember& member) { return reached_[member.index]; });
}

// A hook may throw on this rank only; the others would wait for its part.
template <class Call>
void Reducer::or_fail_everywhere(Call&& call) {
  try {
    call();
  } catch (...) {
    group_.abort("backward of DistributedDataParallel failed: " + std::string(first_line(text_of_current_exception())));
    throw;
  }
}

void Reducer::launch_ready_buckets(const at::Tensor* added) {
  std::size_t last = buckets_.size() - 1;
  while (last > 0 && is_skipped(*buckets_[last])) --last;
  for (; launched_ < buckets_.size() && buckets_[launched_]->is_ready(); ++launched_) {
    if (is_skipped(*buckets_[launched_])) continue;
    or_fail_everywhere([&] {
      buckets_[launched_]->launch({.group = group_,
                                   .backward = backward_,
                                   .added = added,
                                   .is_last = launched_ == last,
                                   .silent = note_.silent,
                                   .look_for_non_finite = options_.non_finite != NonFinite::ignore});
    });
  }
}

void Reducer::end_backward() {
  take(BackwardEvent::end);
  std::optional<Error> dropped;
  try {
    let_go();
    if (note_.synchronise) dropped = finish();
  } catch (...) {
    take(BackwardEvent::failed);
    throw;
  }
  take(forwards_->awaits_backward() ? BackwardEvent::finished_one : BackwardEvent::finished);
  if (dropped) throw *dropped;
}

// Blocks until all averages are there. Returns the error that backward() throws although they are.
std::optional<Error> Reducer::finish() {
  const Timed timed(stats_.communication_seconds);
  complete_buckets();
  const JointReport* joint = exchange_reports();
  finish_buckets(joint);
  add_set_aside();
  for (const auto& bucket : buckets_) stats_.copied_bytes += bucket->copied_bytes();
  learn(joint);
  stats_.reduced_bytes += parameter_bytes_;
  ++stats_.backwards;
  std::fill(used_.begin(), used_.end(), false);
  weight_ = 0;
  is_first_ = true;
  has_local_gradients_ = false;
  reached_.clear();
  if (joint != nullptr && !joint->non_finite.empty()) return drop_gradients(*joint);
  return {};
}

// Nothing of a running backward is held: the thread's allocator, and the type of parameters.
void Reducer::let_go() {
  arena_scope_.reset();
  forwards_->close_ranges();
  if (swap_ == nullptr) return;
  swap_->restore();
  swap_->restore_gradients();
}

void Reducer::backward_lost() noexcept {
  if (state_ != BackwardState::collecting) return;  // it has failed at its end
  if (std::this_thread::get_id() == thread_) {
    abandon();
  } else {
    is_lost_elsewhere_ = true;
  }
}

void Reducer::abandon() noexcept {
  try {
    take(BackwardEvent::lost);
    let_go();
    add_set_aside();
    used_ = used_before_;
    weight_ = weight_before_;
    reached_.clear();
  } catch (const std::exception& error) {  // out of memory
    group_.abort(error.what());
  }
}

// Other ranks may have got what this one had started before its backward failed, or wait for it still: so it is
// finished on all ranks that have failed alike, and none of it is kept.
void Reducer::drain() {
  for (const auto& bucket : buckets_) bucket->drop(group_);
}

// Backward has given all the gradients that it will give.
void Reducer::complete_buckets() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Place& place = places_[i];
    if (buckets_[place.bucket]->members()[place.member].is_ready) continue;
    if (learning_) {
      if (fired_[i] != 0) check_gradient(i);
    } else if (options_.static_graph) {
      fail(graph_changed_error(group_.rank(), parameters_[i].name, fired_[i], in_first_[i]));
    } else if (!options_.find_unused_parameters && fired_[i] == 0) {
      missing.push_back(parameters_[i].name);
      continue;
    }
    set_ready(i, fired_[i] != 0);
  }
  // Ranks that did use these parameters wait for this one: they get the same text.
  if (!missing.empty()) fail(no_gradient_error(group_.rank(), missing));
  launch_ready_buckets(nullptr);
}

const JointReport* Reducer::exchange_reports() {
  const bool asks_use = learning_ || (options_.find_unused_parameters && !options_.static_graph && reached_.empty());
  if (!asks_use && !is_weighted() && options_.non_finite == NonFinite::ignore) return nullptr;
  report_.weight = weight_;
  report_.non_finite.reset();
  report_.used.clear();
  if (asks_use) report_.used = used_;
  if (note_.silent) report_.used.assign(report_.used.size(), false);
  for (const auto& bucket : buckets_) {
    if (!report_.non_finite && bucket->is_launched()) report_.non_finite = bucket->non_finite();
  }
  const CallOptions call{.name = "DDP report of backward", .number = backward_};
  return &reports_.exchange(report_, parameters_.size(), group_, call);
}

void Reducer::finish_buckets(const JointReport* joint) {
  Finish finish{.group = group_};
  if (joint != nullptr && !joint->used.empty()) finish.used = &joint->used;
  if (!reached_.empty()) finish.used = &reached_;
  if (!ever_used_.empty()) finish.used = &ever_used_;
  if (is_weighted() && joint->weight > 0) finish.factor = group_.size() / joint->weight;
  for (const auto& bucket : buckets_) {
    if (bucket->is_launched()) or_fail_everywhere([&] { bucket->finish(finish); });
  }
}

// What the first synchronised backward has shown.
void Reducer::learn(const JointReport* joint) {
  if (std::exchange(learning_, false)) {
    in_first_ = fired_;
    ever_used_ = joint->used;
  }
  if (std::exchange(rebuilt_, true) || (options_.find_unused_parameters && !options_.static_graph)) return;
  std::vector<bool> arrived(parameters_.size());
  for (const std::size_t i : arrivals_) arrived[i] = true;
  for (const std::size_t i : reversed_order(parameters_.size())) {
    if (!arrived[i]) arrivals_.push_back(i);
  }
  const at::Tensor order = at::tensor(std::vector<std::int64_t>(arrivals_.begin(), arrivals_.end()), at::kLong);
  group_.broadcast(order, 0, {.name = "DDP order of gradients"});
  const std::span told(order.const_data_ptr<std::int64_t>(), parameters_.size());
  form_buckets(believed(group_, [&] { return checked_permutation(told, "parameter", {"order of gradients", 0}); }));
}

std::optional<Error> Reducer::drop_gradients(const JointReport& joint) {
  for (const TrainedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  ++stats_.skipped_steps;
  std::vector<std::pair<int, std::string>> where;
  for (const auto& [rank, index] : joint.non_finite) where.emplace_back(rank, parameters_[index].name);
  Error error = non_finite_error(group_.rank(), where);
  if (options_.non_finite == NonFinite::fail) return error;
  if (group_.rank() == 0) log_warning(error.what());
  return {};
}

void Reducer::check_gradient(std::size_t parameter) {
  const TrainedParameter& one = parameters_[parameter];
  const at::Tensor& gradient = one.tensor.grad();
  if (!gradient.defined()) return;  // a function has given none: zeros, as in PyTorch
  const char* problem = nullptr;
  if ((gradient.layout() != at::kStrided) != one.sparse) {
    problem = one.sparse ? "is dense, though its module was made for sparse ones"
                         : "is sparse, though no module was made for that";
  } else if (gradient.scalar_type() != one.tensor.scalar_type() && swap_ == nullptr) {
    problem = "has another dtype than the parameter";
  }
  if (problem != nullptr) fail(unsupported_gradient_error(group_.rank(), one.name, problem));
}

void Reducer::fail(const Error& error) {
  group_.abort(error.what());
  throw error;
}

std::vector<std::size_t> Reducer::bucket_bytes() const {
  std::vector<std::size_t> bytes;
  for (const auto& bucket : buckets_) bytes.push_back(bucket->bytes());
  return bytes;
}

std::shared_ptr<ArenaHeap> Reducer::heap() const {
  std::shared_ptr<ArenaHeap> heap;
  if (group_.shares_memory()) group_.drive([&](ArenaEngine& engine) { heap = engine.arena().heap(); });
  return heap;
}

}  // namespace lockstep
