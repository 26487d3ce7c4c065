#include "lockstep/train/ddp/autograd/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace lockstep::internal {

struct BackwardWatch::State {
  std::vector<at::Tensor> parameters;
  std::shared_ptr<BackwardRecord> record;

  bool has_gradients() const {
    return std::ranges::any_of(parameters, [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  }

  // A gradient is about to be added.
  void note() const {
    const int task = torch::autograd::get_current_graph_task_id();
    if (record == nullptr || task == -1) return;
    auto& open = record->open_;
    if (std::ranges::any_of(open, [&](const auto& known) { return known.graph_task == task; })) return;
    const bool clean = !has_gradients();
    if (clean) {  // earlier gradients have been dropped
      open.clear();
      record->whole_ = 0;
    }
    open.push_back({.graph_task = task, .began_without_gradients = clean});
    torch::autograd::Engine::get_default_engine().queue_callback([record = std::weak_ptr(record), task] {
      const auto kept = record.lock();
      if (kept == nullptr) return;
      std::erase_if(kept->open_, [&](const auto& known) { return known.graph_task == task; });
      ++kept->whole_;
    });
  }
};

BackwardRecord::Left BackwardRecord::left() const {
  if (open_.empty()) return Left::whole;
  const bool is_part = whole_ == 0 && open_.front().began_without_gradients;
  return is_part ? Left::part : Left::mixture;
}

namespace {

// Marks an accumulator, and does nothing.
class Mark final : public torch::autograd::FunctionPostHook {
 public:
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    return outputs;
  }
};

}  // namespace

struct BackwardWatch::Hooks {
  unsigned before = 0;  // a gradient is added
  // A parameter refers to its accumulator weakly, so a hook has to keep it alive.
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
  std::uintptr_t mark = 0;
};

BackwardWatch::BackwardWatch(std::vector<at::Tensor> parameters) : state_(std::make_shared<State>()) {
  state_->parameters = std::move(parameters);
  for (const at::Tensor& parameter : state_->parameters) {
    Hooks& hooks = hooks_.emplace_back();
    hooks.before = parameter.register_hook([state = std::weak_ptr(state_)](const at::Tensor&) {
      if (const auto kept = state.lock()) kept->note();
    });
    hooks.accumulator = torch::autograd::impl::grad_accumulator(parameter);
    hooks.mark = hooks.accumulator->add_post_hook(std::make_unique<Mark>());
  }
}

BackwardWatch::~BackwardWatch() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    state_->parameters[i].remove_hook(hooks_[i].before);
    hooks_[i].accumulator->del_post_hook(hooks_[i].mark);
  }
}

bool BackwardWatch::watches(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::ranges::any_of(accumulator->post_hooks(),
                             [](const auto& hook) { return dynamic_cast<const Mark*>(hook.get()) != nullptr; });
}

void BackwardWatch::note_in(std::shared_ptr<BackwardRecord> record) { state_->record = std::move(record); }

}  // namespace lockstep::internal
