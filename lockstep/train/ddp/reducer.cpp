#include "lockstep/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep::internal {
namespace {

constexpr int kStraysOfConfusion = 3;

}  // namespace

std::shared_ptr<Reducer> Reducer::make(TrainedParameters parameters, ProcessGroup group, const DdpOptions& options,
                                       std::shared_ptr<PrecisionCast> cast, std::shared_ptr<StepTimer> timer,
                                       std::uint64_t wrapper) {
  std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(parameters), std::move(group), options, std::move(cast), std::move(timer), wrapper));
  reducer->install_hooks();
  return reducer;
}

Reducer::Reducer(TrainedParameters parameters, ProcessGroup group, const DdpOptions& options,
                 std::shared_ptr<PrecisionCast> cast, std::shared_ptr<StepTimer> timer, std::uint64_t wrapper)
    : group_(std::move(group)),
      options_(options),
      parameters_(std::move(parameters)),
      cast_(std::move(cast)),
      timer_(std::move(timer)),
      heap_(group_.heap()),
      averager_(parameters_, group_, options_, *timer_, wrapper),
      failed_([this](const char* text) { group_.note_failure("backward of DistributedDataParallel", text); }) {}

void Reducer::install_hooks() {
  const auto weak = weak_from_this();
  const auto call = [&](void (Reducer::*member)()) {
    return [weak, member] {
      if (const auto self = weak.lock()) ((*self).*member)();
    };
  };
  forwards_.emplace([weak, averages = group_.size() > 1](ForwardGraphs::Id forward) {
    if (const auto self = weak.lock()) return !self->is_in_own_backward(forward) || self->counts(forward);
    if (averages && GradientHook::all_are_accumulated_now()) throw destroyed_wrapper_error();
    return true;
  });
  end_.emplace(call(&Reducer::end_backward), [weak] {
    if (const auto self = weak.lock()) self->backward_lost();
  });
  end_of_inputs_gradients_.emplace(call(&Reducer::inputs_differentiated), call(&Reducer::inputs_differentiated));
  hooks_.emplace(parameters_, cast_, [weak](std::size_t parameter, const at::Tensor& added) {
    if (const auto self = weak.lock()) self->gradient_arrived(parameter, added);
  });
  hooks_->refuse_as_inputs([&](const std::string& name) { return chosen_inputs_error(group_.rank(), name); });
  if (options_.weighting != Weighting::samples) return;
  hooks_->scale_gradients([weak] {
    const auto self = weak.lock();
    return self != nullptr && self->is_in_own_backward({}) ? self->averager_.factor() : 1.0;
  });
}

BackwardAction Reducer::take(BackwardEvent event) {
  const auto [state, action] = next(state_, event);
  if (action == BackwardAction::refuse) throw misplaced_event_error(group_.rank(), to_string(event), to_string(state_));
  if (action == BackwardAction::drain || action == BackwardAction::drain_and_start) averager_.drain();
  state_ = state;
  return action;
}

ForwardGraphs::Id Reducer::begin_forward(const ForwardNote& note) {
  failed_.claim_thread();
  abandon_if_lost_elsewhere();
  if (std::exchange(has_stray_gradients_, false)) {
    throw_on_all_ranks(group_, stray_gradients_error(group_.rank()));
  }
  take(BackwardEvent::forward);
  if (cast_ != nullptr) cast_->cast_for_forward();
  return forwards_->begin(note);
}

void Reducer::check_parameters() const {
  const auto replaced = hooks_->find_again();
  if (replaced) throw_on_all_ranks(group_, replaced_parameter_error(group_.rank(), parameters_[*replaced].name));
}

void Reducer::end_forward(ForwardGraphs::Id forward, bool has_returned) {
  forwards_->end(forward, has_returned);
  restore_master_weights();
}

// Within a backward, or a forward that calls its wrapper again, parameters remain as it needs them.
void Reducer::restore_master_weights() {
  const bool is_in_use = state_ == BackwardState::collecting || forwards_->is_within_forward();
  if (cast_ != nullptr && !is_in_use) cast_->restore_master_weights();
}

// Whether to collect the backward that runs. The first sign of such a backward starts it.
// reached: a forward whose output it has reached.
bool Reducer::is_in_own_backward(std::optional<ForwardGraphs::Id> reached) {
  abandon_if_lost_elsewhere();
  if (state_ == BackwardState::collecting) return true;
  const int backward = current_backward();
  if (!reached && backward == stray_backward_) return false;
  if (!hooks_->is_accumulated_now()) {
    if (reached) differentiate_inputs(*reached);
    return false;
  }
  const std::optional<ForwardNote> note = forwards_->note_of_current_backward(reached);
  if (note) start(*note);
  if (!note) count_stray(backward);
  return note.has_value();
}

// In a backward through batches of this rank's own and through one that it repeats, the gradients cannot be separated
// after the outputs: there, those of the repeated one are dropped.
bool Reducer::counts(ForwardGraphs::Id forward) const {
  if (!forwards_->is_mixed()) return true;
  const auto found = std::ranges::find(forwards_->found(), forward, &ForwardGraphs::Found::id);
  return found == forwards_->found().end() || !found->joined;
}

// A program whose first backwards all bypass the wrapper has most likely confused it with its module.
void Reducer::count_stray(int backward) {
  stray_backward_ = backward;
  const bool is_confused = strays_before_first_ < kStraysOfConfusion && ++strays_before_first_ == kStraysOfConfusion;
  if (is_confused && group_.size() > 1 && group_.rank() == 0) log_warning(only_stray_backwards_text());
}

// autograd::grad goes through a forward: no parameter gets a gradient.
void Reducer::differentiate_inputs(ForwardGraphs::Id forward) {
  forwards_->was_differentiated(forward);
  const bool casts = cast_ != nullptr && !cast_->is_cast();
  if (casts) cast_->cast_for_backward();
  if (casts || at::GradMode::is_enabled()) end_of_inputs_gradients_->await();
}

void Reducer::inputs_differentiated() {
  forwards_->close_ranges();
  restore_master_weights();
}

void Reducer::start(const ForwardNote& note) {
  if (forwards_->passes_outputs()) throw_on_all_ranks(group_, mixed_join_error(group_.rank()));
  const bool is_cast = cast_ != nullptr && cast_->is_cast();
  if (note.synchronise && !note.is_training && before_in_evaluation_ && !is_cast) before_in_evaluation_();
  take(BackwardEvent::begin);
  thread_ = std::this_thread::get_id();
  end_->await();
  has_stray_gradients_ = false;
  strays_before_first_ = kStraysOfConfusion;  // no more are counted
  arena_scope_.emplace(heap_);
  if (cast_ != nullptr) cast_->cast_for_backward();
  averager_.begin(note, *forwards_, *hooks_);
}

void Reducer::gradient_arrived(std::size_t parameter, const at::Tensor& added) {
  if (is_in_own_backward({})) {
    take(BackwardEvent::gradient);
    averager_.arrived(parameter, added);
    return;
  }
  averager_.arrived_locally(parameter, added);
  const bool may_be_missed = take(BackwardEvent::stray_gradient) == BackwardAction::note_stray;
  if (may_be_missed && forwards_->may_have_been_passed_by()) has_stray_gradients_ = true;
}

void Reducer::end_backward() {
  take(BackwardEvent::end);
  std::optional<Error> dropped;
  try {
    release_backward();
    dropped = averager_.finish();
  } catch (...) {
    take(BackwardEvent::failed);
    throw;
  }
  take(forwards_->awaits_backward() ? BackwardEvent::finished_one : BackwardEvent::finished);
  if (dropped) throw *dropped;
}

// Restores the thread's allocator and the parameters' type from before the backward.
void Reducer::release_backward() {
  arena_scope_.reset();
  forwards_->close_ranges();
  if (cast_ == nullptr) return;
  cast_->restore_master_weights();
  cast_->restore_gradient_dtype();
}

void Reducer::backward_lost() noexcept {
  if (state_ != BackwardState::collecting) return;  // it has failed at its end
  if (std::this_thread::get_id() == thread_) {
    abandon();
  } else {
    is_lost_elsewhere_ = true;
  }
}

void Reducer::abandon_if_lost_elsewhere() {
  if (is_lost_elsewhere_ && is_lost_elsewhere_.exchange(false)) abandon();
}

void Reducer::abandon() noexcept {
  try {
    take(BackwardEvent::lost);
    release_backward();
    averager_.roll_back();
  } catch (const std::exception& error) {  // out of memory
    group_.abort(error.what());
  }
}

}  // namespace lockstep::internal
