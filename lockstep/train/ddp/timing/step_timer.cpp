#include "lockstep/train/ddp/timing/step_timer.h"

#include <algorithm>

namespace lockstep::internal {
namespace {

std::int64_t ns_of(TimePoint time) { return time.time_since_epoch().count(); }

CallTimes operator-(const CallTimes& a, const CallTimes& b) { return {a.waiting - b.waiting, a.moving - b.moving}; }

Duration within(Duration part, Duration whole) { return std::clamp(part, Duration(0), whole); }

}  // namespace

void StepTimer::forward_begins() {
  switch (state_) {
    case State::idle:
    case State::backward:  // which has failed
      return restart(State::forward);
    case State::forward:
    case State::compute: return;
    case State::averaged: end_step(); return change(State::forward, StepPhase::data);
    case State::gap:
    case State::partial: return change(State::forward, StepPhase::data);
  }
}

void StepTimer::backward_begins() {
  if (state_ == State::forward) return change(State::backward, StepPhase::forward);
  // Of a forward that had its backward already, or that is unknown.
  if (state_ == State::partial || state_ == State::averaged) return change(State::backward, StepPhase::backward);
  restart(State::backward);
}

void StepTimer::backward_ends(Gradients gradients) {
  if (state_ != State::backward) return;
  change(gradients == Gradients::averaged ? State::averaged : State::partial, StepPhase::backward);
}

void StepTimer::step_ends() {
  if (state_ != State::averaged && state_ != State::compute) return;
  change(State::gap, state_ == State::compute ? StepPhase::compute : StepPhase::optimizer);
  end_step();
}

void StepTimer::compute_begins() {
  if (state_ == State::compute) return;
  if (state_ == State::averaged) end_step();
  if (state_ == State::gap || state_ == State::averaged) return change(State::compute, StepPhase::data);
  restart(State::compute);
}

void StepTimer::compute_ends() {
  if (state_ == State::compute) change(State::averaged, StepPhase::compute);
}

void StepTimer::leave_out() {
  if (state_ == State::averaged) end_step();
  if (state_ == State::averaged || state_ == State::gap) return restart(State::gap);
  if (state_ == State::partial) restart(State::partial);
}

void StepTimer::change(State next, StepPhase ended) {
  const TimePoint now = sources_.clock.now();
  const CallTimes calls = sources_.calls(now);
  add(ended, span_until(now, calls, state_ == State::backward));
  state_ = next;
  since_ = now;
  calls_ = calls;
  blocked_ = {};
  blocked_calls_ = {};
}

void StepTimer::restart(State next) {
  if (state_ == State::backward || state_ == State::idle) current_ = {};
  state_ = next;
  since_ = sources_.clock.now();
  calls_ = sources_.calls(since_);
  blocked_ = {};
  blocked_calls_ = {};
}

StepTimer::Span StepTimer::span_until(TimePoint now, const CallTimes& calls, bool is_backward) const {
  Span span{.begin = since_, .end = std::max(now, since_)};
  const Duration whole = span.end - span.begin;
  const CallTimes passed = calls - calls_;
  if (!is_backward) {  // calls outside of a backward block
    span.waiting = within(passed.waiting, whole);
    span.communicating = within(passed.moving, whole - span.waiting);
    return span;
  }
  const Duration blocked = within(blocked_, whole);
  span.waiting = within(blocked_calls_.waiting, blocked);
  span.communicating = blocked - span.waiting;
  span.hidden = within(passed.moving - blocked_calls_.moving, whole - blocked);
  return span;
}

void StepTimer::add(StepPhase phase, const Span& span) {
  part_of(current_, phase) += seconds(span.end - span.begin - span.waiting - span.communicating);
  current_.waiting += seconds(span.waiting);
  current_.communicating += seconds(span.communicating);
  current_.hidden += seconds(span.hidden);
  if (!sources_.record) return;
  FlightPhase record;
  record.step = step_;
  record.begin_ns = ns_of(span.begin);
  record.end_ns = ns_of(span.end);
  record.waiting_ns = span.waiting.count();
  record.communicating_ns = span.communicating.count();
  record.hidden_ns = span.hidden.count();
  record.model = sources_.model;
  record.phase = phase;
  sources_.record(record);
}

void StepTimer::end_step() {
  if (sources_.count_step) sources_.count_step();
  current_.steps = 1;
  if (step_ != 1) {
    waits_[static_cast<std::size_t>(window_.steps) % waits_.size()] = static_cast<float>(current_.waiting);
    window_ += current_;
    total_ += current_;
  }
  ++step_;
  current_ = {};
}

StepWindow StepTimer::take_window() {
  StepWindow window{.times = window_, .waits = {}};
  const auto steps = static_cast<std::size_t>(window_.steps);
  const std::size_t kept = std::min(steps, waits_.size());
  for (std::size_t step = steps - kept; step < steps; ++step) window.waits.push_back(waits_[step % waits_.size()]);
  window_ = {};
  return window;
}

StepTimer::Communication::Communication(StepTimer& timer, double& sum)
    : timer_(timer), sum_(sum), start_(timer.sources_.clock.now()), calls_(timer.sources_.calls(start_)) {}

StepTimer::Communication::~Communication() {
  const TimePoint now = timer_.sources_.clock.now();
  const CallTimes passed = timer_.sources_.calls(now) - calls_;
  timer_.blocked_ += now - start_;
  timer_.blocked_calls_.waiting += passed.waiting;
  timer_.blocked_calls_.moving += passed.moving;
  sum_ += seconds(now - start_);
}

}  // namespace lockstep::internal
