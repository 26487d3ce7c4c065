#include "lockstep/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <unordered_set>
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

void ParameterSearch::from(const at::Tensor& output) {
  using torch::autograd::Node;
  const auto start = torch::autograd::impl::gradient_edge(output).function;
  if (start == nullptr) return;
  std::unordered_map<const Node*, std::size_t> accumulators;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameters_[i]);
    if (accumulator) accumulators.emplace(&*accumulator, i);
  }
  std::unordered_set<const Node*> seen{&*start};
  std::vector<const Node*> open{&*start};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (const auto parameter = accumulators.find(node); parameter != accumulators.end()) {
      found_[parameter->second] = true;
    }
    for (const auto& edge : node->next_edges()) {
      const Node* next = edge.function ? &*edge.function : nullptr;
      if (next != nullptr && seen.insert(next).second) open.push_back(next);
    }
  }
}

void when_backward_reaches(const at::Tensor& output, std::function<void()> call) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([call = std::move(call)](const at::TensorBase&) { call(); });
}

void at_end_of_backward(std::function<void()> call) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(call));
}

}  // namespace lockstep
