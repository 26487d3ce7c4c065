#include "lockstep/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace lockstep {
namespace {

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    on_ready_();
    return outputs;
  }

 private:
  std::function<void()> on_ready_;
};

class PreHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit PreHook(std::shared_ptr<const std::function<void()>> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    (*call_)();
    return gradients;
  }

 private:
  const std::shared_ptr<const std::function<void()>> call_;
};

}  // namespace

struct GradientHook::Impl {
  // A parameter refers to its accumulator weakly: whoever hooks it must keep it alive.
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
  std::uintptr_t key = 0;
};

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void()> on_ready)
    : impl_(std::make_unique<Impl>()) {
  impl_->accumulator = torch::autograd::impl::grad_accumulator(parameter);
  impl_->key = impl_->accumulator->add_post_hook(std::make_unique<PostHook>(std::move(on_ready)));
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook::~GradientHook() {
  if (impl_ != nullptr) impl_->accumulator->del_post_hook(impl_->key);
}

bool GradientHook::watches(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  for (const auto& hook : accumulator->post_hooks()) {
    if (dynamic_cast<const PostHook*>(hook.get()) != nullptr) return true;
  }
  return false;
}

GradientScale::GradientScale(at::Tensor parameter, std::function<double()> factor)
    : parameter_(std::move(parameter)),
      hook_(parameter_.register_hook([factor = std::move(factor)](const at::Tensor& gradient) {
        const double by = factor();
        return by == 1 ? gradient : gradient.mul(by);
      })) {}

GradientScale::~GradientScale() {
  if (parameter_.defined()) parameter_.remove_hook(hook_);
}

ParameterSearch::ParameterSearch(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)), found_(parameters_.size()) {}
ParameterSearch::~ParameterSearch() = default;

void ParameterSearch::find_accumulators() {
  accumulators_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameters_[i]);
    if (accumulator) accumulators_.emplace(&*accumulator, i);
  }
}

void ParameterSearch::from(const at::Tensor& output) {
  using torch::autograd::Node;
  const auto start = torch::autograd::impl::gradient_edge(output).function;
  if (start == nullptr || !seen_.insert(&*start).second) return;
  open_.push_back(&*start);
  while (!open_.empty()) {
    const auto* node = static_cast<const Node*>(open_.back());
    open_.pop_back();
    if (const auto parameter = accumulators_.find(node); parameter != accumulators_.end()) {
      found_[parameter->second] = true;
    }
    for (const auto& edge : node->next_edges()) {
      const Node* next = edge.function ? &*edge.function : nullptr;
      if (next != nullptr && seen_.insert(next).second) open_.push_back(next);
    }
  }
}

void when_backward_reaches(const at::Tensor& output, std::shared_ptr<const std::function<void()>> call) {
  if (!output.defined() || output.grad_fn() == nullptr) return;
  output.grad_fn()->add_pre_hook(std::make_unique<PreHook>(std::move(call)));
}

struct EndOfBackward::Call {
  std::function<void()> call;
  std::shared_ptr<Call> self;  // while a backward may call it
};

EndOfBackward::EndOfBackward(std::function<void()> call) : call_(std::make_shared<Call>()) {
  call_->call = std::move(call);
}

EndOfBackward::~EndOfBackward() {
  // What a backward that threw has left; one that is under way still comes for it.
  if (torch::autograd::get_current_graph_task_id() == -1) call_->self.reset();
}

void EndOfBackward::await() {
  call_->self = call_;
  // A pointer is what a std::function holds without memory of its own.
  torch::autograd::Engine::get_default_engine().queue_callback([call = call_.get()] {
    const std::shared_ptr<Call> kept = std::exchange(call->self, nullptr);
    kept->call();
  });
}

}  // namespace lockstep
