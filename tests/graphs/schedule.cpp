#include "tests/graphs/schedule.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <limits>
#include <thread>
#include <utility>

#include "tests/graphs/dice.h"
#include "tests/graphs/functions.h"

namespace lockstep::testing {

namespace {

constexpr double kRate = 0.05;
constexpr double kPenalty = 0.01;  // small, so that a few steps of it do not blow rounding up

std::string number_of(const char* what, std::size_t i) { return what + std::to_string(i); }

// Plays one schedule on one side.
class Player {
 public:
  Player(const Play& play, Side& side) : play_(play), side_(side) {}

  Trace run() {
    for (step_ = 0; step_ < static_cast<int>(play_.schedule.size()); ++step_) {
      const TrainingStep& step = play_.schedule[static_cast<std::size_t>(step_)];
      const auto kept = std::exchange(kept_, {});  // lives until this step is done
      zero(step.zero);
      take(step);
      if (step.optimizes) optimize();
      record();
    }
    return std::move(trace_);
  }

 private:
  Call call_of(int part, bool blows = false) const {
    return {.rank = side_.rank(), .step = step_, .part = part, .blows = blows};
  }
  std::uint64_t seed_of(int part, int rank) const {
    return Dice(play_.seed * 1000003 + static_cast<std::uint64_t>(((step_ * 64) + part) * 64 + rank)).next();
  }
  at::Tensor input(int part) const { return input(part, side_.rank()); }
  at::Tensor input(int part, int rank) const {
    const std::uint64_t seed = seed_of(part, rank);
    const std::int64_t rows = play_.unequal_rows ? 1 + Dice(seed + 1).below(5) : play_.graph.rows;
    return noise({rows, kWidth}, seed);
  }

  Forwarded forward(int part, bool blows = false) { return forward_of(input(part), part, blows); }
  Forwarded forward_of(const at::Tensor& x, int part, bool blows = false) {
    Forwarded forwarded = side_.forward(x, call_of(part, blows));
    change(forwarded);
    return forwarded;
  }
  void change(Forwarded& forwarded) const {
    if (!play_.schedule[static_cast<std::size_t>(step_)].changes_output || !at::GradMode::is_enabled()) return;
    auto& [main, more] = forwarded.result;
    if (play_.graph.outputs_are_views && main.requires_grad()) main.mul_(1.5);
    if (!more.empty() && more.back().requires_grad()) more.back().add_(0.25);
  }

  at::Tensor loss_of(const Forwarded& forwarded) const {
    const auto& [main, more] = forwarded.result;
    at::Tensor loss = main.square().mean();
    for (const at::Tensor& output : more) loss = loss + output.mean() * 0.1;
    if (forwarded.auxiliary.defined()) loss = loss + forwarded.auxiliary;
    if (play_.graph.loss_uses_parameter && !forwarded.parameters.empty()) {
      loss = loss + forwarded.parameters.back().abs().square().mean().to(loss.scalar_type()) * 0.3;
    }
    return loss;
  }
  void backward(const Forwarded& forwarded, bool retain = false) {
    side_.backward(loss_of(forwarded), {&forwarded}, retain);
  }
  void plain(int part) { backward(forward(part)); }

  void take(const TrainingStep& step) {
    switch (step.kind) {
      case StepKind::plain:
      case StepKind::poisoned: return plain_or_poisoned(step);
      case StepKind::accumulate: return accumulate(step);
      case StepKind::skip: return skip();
      case StepKind::evaluate: return evaluate();
      case StepKind::dropped_forward: return drop_forward(step);
      case StepKind::two_forwards: return two_forwards();
      case StepKind::two_backwards: return two_backwards(step);
      case StepKind::crossed: return crossed(step);
      case StepKind::retained: return retained();
      case StepKind::attack: return attack();
      case StepKind::penalty: return penalty();
      case StepKind::bare: return bare(step);
      case StepKind::threaded: return threaded();
      case StepKind::reload: side_.reload(); return plain(0);
      case StepKind::uneven: return uneven(step);
      case StepKind::sharded: return sharded(step);
    }
  }

  void plain_or_poisoned(const TrainingStep& step) {
    const at::Tensor x = input(0);
    if (step.kind == StepKind::poisoned && step.choice % side_.ranks() == side_.rank()) {
      x.mutable_data_ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    }
    backward(forward_of(x, 0));
  }

  void accumulate(const TrainingStep& step) {
    side_.without_sync([&] {
      for (int part = 1; part <= step.times; ++part) plain(part);
    });
    plain(0);
  }

  void skip() {
    const Forwarded forwarded = forward(0, true);
    bool blown = false;
    try {
      backward(forwarded);
    } catch (const Blown&) {
      blown = true;
    }
    if (!blown) complain("the backward that was to throw did not");
    zero(Zero::to_none);
  }

  void evaluate() {
    side_.train(false);
    {
      const at::NoGradGuard no_grad;
      const Forwarded forwarded = forward(0);
      trace_.push_back({"evaluated", std::get<0>(forwarded.result).clone()});
    }
    side_.train(true);
  }

  void drop_forward(const TrainingStep& step) {
    Forwarded forwarded = forward(0);
    if (step.choice % 2 == 1) kept_.push_back(std::move(forwarded));
  }

  void two_forwards() {
    const Forwarded one = forward(0), other = forward(1);
    const double rows = one.weight + other.weight;
    side_.backward(loss_of(one) * (one.weight / rows) + loss_of(other) * (other.weight / rows), {&one, &other}, false);
  }

  void two_backwards(const TrainingStep& step) {
    const Forwarded one = forward(0), other = forward(1);
    backward(step.choice % 2 == 1 ? other : one);
    backward(step.choice % 2 == 1 ? one : other);
  }

  void crossed(const TrainingStep& step) {
    Forwarded one, other;
    const auto local = [&] { side_.without_sync([&] { one = forward(0); }); };
    if (step.choice / 2 % 2 == 0) local();
    other = forward(1);
    if (step.choice / 2 % 2 == 1) local();
    if (step.choice % 2 == 1) return side_.backward(loss_of(one) + loss_of(other), {&one, &other}, false);
    backward(one);
    backward(other);
  }

  void retained() {
    const Forwarded forwarded = forward(0);
    backward(forwarded, true);
    backward(forwarded);
  }

  void attack() {
    const at::Tensor x = input(0).requires_grad_();
    const at::Tensor loss = loss_of(forward_of(x, 0));
    const at::Tensor gradient = torch::autograd::grad({loss}, {x})[0];
    trace_.push_back({"gradient to the input", gradient.clone()});
    backward(forward_of((x.detach() + gradient.sign() * 0.1), 0));
  }

  void penalty() {
    const at::Tensor x = input(0).requires_grad_();
    const Forwarded forwarded = forward_of(x, 0);
    const at::Tensor loss = loss_of(forwarded);
    const at::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    side_.backward(loss + gradient.square().sum() * kPenalty, {&forwarded}, false);
  }

  void bare(const TrainingStep& step) {
    const bool on_all = step.choice % 2 == 1, stays = step.choice / 2 % 2 == 1, first = step.choice / 4 % 2 == 1;
    const auto beside = [&] {
      if (!on_all && side_.rank() != side_.ranks() - 1) return;
      const Forwarded forwarded = side_.bare_forward(input(1), call_of(1));
      backward(forwarded);
      if (!stays) zero(Zero::to_none);
    };
    if (first) {
      beside();
      plain(0);
    } else {
      const Forwarded forwarded = forward(0);
      beside();
      backward(forwarded);
    }
  }

  void threaded() {
    const Forwarded forwarded = forward(0);
    std::exception_ptr error;
    std::thread([&] {
      at::set_num_threads(1);  // as play() does
      try {
        backward(forwarded);
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
  }

  void uneven(const TrainingStep& step) {
    const int mine = 1 + (step.choice + side_.rank()) % 3;
    side_.join(mine, [&](const Batch& batch) {
      zero(Zero::to_none);
      backward(forward(batch.part));
      optimize();
    });
  }

  void sharded(const TrainingStep& step) {
    const double loss = side_.for_each_shard([&](const Batch& batch) {
      double sum = 0;
      for (int part = 0; part < step.times; ++part) {
        const Call call{.rank = batch.rank, .step = step_, .part = part};
        const Forwarded forwarded = side_.forward(input(part, batch.rank), call);
        const at::Tensor value = loss_of(forwarded) / step.times;
        side_.backward(value, {&forwarded}, false);
        sum += value.item<double>();
      }
      return sum;
    });
    trace_.push_back({"mean loss", at::scalar_tensor(loss, at::kDouble)});
  }

  void zero(Zero how) {
    if (how == Zero::not_at_all) return;
    for (const at::Tensor& parameter : side_.parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (how == Zero::to_none || gradient.is_sparse()) {
        gradient.reset();
      } else {
        gradient.zero_();
      }
    }
  }

  void optimize() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : side_.parameters()) {
      if (parameter.grad().defined()) at::Tensor(parameter).add_(parameter.grad(), -kRate);
    }
  }

  void complain(std::string what) { trace_.push_back({std::move(what), {}}); }

  void record() {
    const std::string prefix = "step " + std::to_string(step_) + ", ";
    const auto add = [&](std::string name, const at::Tensor& value) {
      trace_.push_back({prefix + std::move(name), value.defined() ? value.detach().clone() : at::Tensor()});
    };
    const auto parameters = side_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      add(number_of("gradient of p", i), parameters[i].grad());
      add(number_of("p", i), parameters[i]);
    }
    const auto statistics = side_.statistics();
    for (std::size_t i = 0; i < statistics.size(); ++i) add(number_of("statistics ", i), statistics[i]);
    if (const std::string text = side_.complaint(); !text.empty()) complain(prefix + text);
  }

  const Play& play_;
  Side& side_;
  int step_ = 0;
  std::vector<Forwarded> kept_;
  Trace trace_;
};

}  // namespace

std::string to_text(const TrainingStep& step) {
  static const char* const kKinds[] = {"plain",        "accumulate",    "skip",     "evaluate", "dropped_forward",
                                       "two_forwards", "two_backwards", "crossed",  "retained", "attack",
                                       "penalty",      "bare",          "threaded", "reload",   "poisoned",
                                       "uneven",       "sharded"};
  static const char* const kZeros[] = {"none", "zeros", "no zero_grad"};
  std::string text = std::string("  ") + kKinds[static_cast<std::size_t>(step.kind)] +
                     ", gradients before: " + kZeros[static_cast<std::size_t>(step.zero)] + ", choice " +
                     std::to_string(step.choice);
  if (step.times != 1) text += ", times " + std::to_string(step.times);
  if (step.changes_output) text += ", caller changes outputs in place";
  if (!step.optimizes) text += ", no optimizer step";
  return text + "\n";
}

Trace play(const Play& play, Side& side) {
  at::set_num_threads(1);  // MKL's is each thread's own, and the bits of its products depend on it
  return Player(play, side).run();
}

}  // namespace lockstep::testing
