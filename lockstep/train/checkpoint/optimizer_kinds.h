// The kinds of optimizers that libtorch has: for each its options, and what it remembers of a parameter, one by one, by
// their names, which are PyTorch's. each_option() and each_field() pass references, so a visitor reads or sets them:
//   Kind::each_option(options, [](const char* name, auto& option) { ... });
//   Kind::each_field(state, options, [](const StateField& info, auto& field) { ... });
// An option is a double, bool, int64_t, tuple<double, double>, optional<int64_t> or optional<string>; a field an
// int64_t, double, tensor, deque<Tensor> or optional<vector<Tensor>>.
#pragma once

#include <torch/optim/lbfgs.h>

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint/elementwise_kinds.h"

namespace lockstep::internal {

struct LbfgsKind {
  using Optimizer = torch::optim::LBFGS;
  using Options = torch::optim::LBFGSOptions;
  using State = torch::optim::LBFGSParamState;
  static constexpr std::string_view kName = "LBFGS";
  static constexpr bool kIsWhole = true, kAlwaysHasState = false;
  template <class SomeOptions, class Visit>
  static void each_option(SomeOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("max_iter", options.max_iter());
    visit("max_eval", options.max_eval());
    visit("tolerance_grad", options.tolerance_grad());
    visit("tolerance_change", options.tolerance_change());
    visit("history_size", options.history_size());
    visit("line_search_fn", options.line_search_fn());
  }
  // If the first gradient was small enough, there has been no iteration, and only the counts exist.
  template <class Visit>
  static void each_field(State& state, const Options&, const Visit& visit) {
    visit(StateField{"func_evals"}, state.func_evals());
    visit(StateField{"n_iter"}, state.n_iter());
    const Stored later = stored_if(state.n_iter() > 0);
    visit(StateField{"t", later}, state.t());
    visit(StateField{"prev_loss", later}, state.prev_loss());
    visit(StateField{"d", later, StateShape::flat}, state.d());
    visit(StateField{"prev_flat_grad", later, StateShape::flat}, state.prev_flat_grad());
    visit(StateField{"H_diag", later, StateShape::scalar}, state.H_diag());
    visit(StateField{"al", Stored::sometimes, StateShape::scalar}, state.al());
    visit(StateField{"old_dirs", later, StateShape::flat}, state.old_dirs());
    visit(StateField{"old_stps", later, StateShape::flat}, state.old_stps());
    visit(StateField{"ro", later, StateShape::scalar}, state.ro());
  }
};

// action(kind) for each of them.
template <class Action>
void for_each_kind(Action action) {
  action(SgdKind());
  action(AdamKind());
  action(AdamWKind());
  action(RmsPropKind());
  action(AdagradKind());
  action(LbfgsKind());
}

// action(kind) for the one that the optimizer is of. Error{invalid_argument} if it is of another.
template <class Action>
void with_kind(const torch::optim::Optimizer& optimizer, Action action) {
  bool is_known = false;
  for_each_kind([&](auto kind) {
    if (is_known || dynamic_cast<const typename decltype(kind)::Optimizer*>(&optimizer) == nullptr) return;
    is_known = true;
    action(kind);
  });
  if (is_known) return;
  throw Error(ErrorKind::invalid_argument,
              "optimizer state: only SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS can be stored");
}

}  // namespace lockstep::internal
