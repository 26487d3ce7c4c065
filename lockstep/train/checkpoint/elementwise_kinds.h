// Those kinds of optimizers in optimizer_kinds.h that update each parameter by its own gradient and state.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <type_traits>

namespace lockstep::internal {

enum class Stored { always, sometimes };
// The shape of a tensor: that of the parameter, one number, or one for each element of all parameters.
enum class StateShape { parameter, scalar, flat };

struct StateField {
  const char* name;
  Stored stored = Stored::always;
  StateShape shape = StateShape::parameter;
};

constexpr Stored stored_if(bool needed) { return needed ? Stored::always : Stored::sometimes; }

// kIsWhole: the state is one of all parameters, and lies at the first. kAlwaysHasState: the optimizer makes it when it
// is made, and cannot step without.
struct SgdKind {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr std::string_view kName = "SGD";
  static constexpr bool kIsWhole = false, kAlwaysHasState = false;
  template <class SomeOptions, class Visit>
  static void each_option(SomeOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <class Visit>
  static void each_field(State& state, const Options&, const Visit& visit) {
    visit(StateField{"momentum_buffer"}, state.momentum_buffer());
  }
};

template <class AnyAdam, class AnyOptions, class AnyState>
struct AnyAdamKind {
  using Optimizer = AnyAdam;
  using Options = AnyOptions;
  using State = AnyState;
  static constexpr std::string_view kName = std::is_same_v<Optimizer, torch::optim::Adam> ? "Adam" : "AdamW";
  static constexpr bool kIsWhole = false, kAlwaysHasState = false;
  template <class SomeOptions, class Visit>
  static void each_option(SomeOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <class Visit>
  static void each_field(State& state, const Options& options, const Visit& visit) {
    visit(StateField{"step"}, state.step());
    visit(StateField{"exp_avg"}, state.exp_avg());
    visit(StateField{"exp_avg_sq"}, state.exp_avg_sq());
    visit(StateField{"max_exp_avg_sq", stored_if(options.amsgrad())}, state.max_exp_avg_sq());
  }
};
using AdamKind = AnyAdamKind<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamWKind = AnyAdamKind<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

struct RmsPropKind {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr std::string_view kName = "RMSprop";
  static constexpr bool kIsWhole = false, kAlwaysHasState = false;
  template <class SomeOptions, class Visit>
  static void each_option(SomeOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <class Visit>
  static void each_field(State& state, const Options& options, const Visit& visit) {
    visit(StateField{"step"}, state.step());
    visit(StateField{"square_avg"}, state.square_avg());
    visit(StateField{"momentum_buffer", stored_if(options.momentum() > 0)}, state.momentum_buffer());
    visit(StateField{"grad_avg", stored_if(options.centered())}, state.grad_avg());
  }
};

struct AdagradKind {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr std::string_view kName = "Adagrad";
  static constexpr bool kIsWhole = false, kAlwaysHasState = true;
  template <class SomeOptions, class Visit>
  static void each_option(SomeOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <class Visit>
  static void each_field(State& state, const Options&, const Visit& visit) {
    visit(StateField{"step"}, state.step());
    visit(StateField{"sum"}, state.sum());
  }
};

}  // namespace lockstep::internal
