#include "lockstep/train/ddp/autograd/gradient_hooks.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/sole_owner.h"

namespace lockstep::internal {
namespace {

using torch::autograd::variable_list;

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void(const at::Tensor&)> arrived) : arrived_(std::move(arrived)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    arrived_(inputs.front());
    return outputs;
  }
  std::optional<Error> refusal;

 private:
  std::function<void(const at::Tensor&)> arrived_;
};

// A parameter refers to its accumulator weakly, by a type that depends on libtorch's version.
template <class T>
auto weak(const std::shared_ptr<T>& pointer) {
  return std::weak_ptr<T>(pointer);
}
template <class T>
auto weak(const c10::intrusive_ptr<T>& pointer) {
  return c10::weak_intrusive_ptr<T>(pointer);
}

// Blocks of one size, for reuse. Thread-safe; kept until the process ends.
class BlockPool {
 public:
  explicit BlockPool(std::size_t bytes) : bytes_(bytes) {}

  void* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return ::operator new(bytes_);
    void* block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(void* block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(block);
  }

 private:
  const std::size_t bytes_;
  std::mutex mutex_;
  std::vector<void*> free_;  // protected by mutex_
};

}  // namespace

struct GradientHook::Impl {
  // A parameter refers to its accumulator weakly, so a hook has to keep it alive.
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
  std::optional<Error>* refusal = nullptr;  // the hook's
  std::uintptr_t key = 0;
};

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void(const at::Tensor&)> arrived)
    : impl_(std::make_unique<Impl>()) {
  impl_->accumulator = torch::autograd::impl::grad_accumulator(parameter);
  auto hook = std::make_unique<PostHook>(std::move(arrived));
  impl_->refusal = &hook->refusal;
  impl_->key = impl_->accumulator->add_post_hook(std::move(hook));
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook::~GradientHook() {
  if (impl_ != nullptr) impl_->accumulator->del_post_hook(impl_->key);
}

void GradientHook::refuse_as_input(const Error& error) const { *impl_->refusal = error; }

void check_inputs(const torch::autograd::edge_list& inputs) {
  for (const torch::autograd::Edge& input : inputs) {
    for (const auto& hook : input.function->post_hooks()) {
      const auto* ours = dynamic_cast<const PostHook*>(hook.get());
      if (ours != nullptr && ours->refusal) throw Error(*ours->refusal);
    }
  }
}

void GradientHook::attach(const at::Tensor& parameter) const {
  torch::autograd::impl::set_grad_accumulator(parameter, weak(impl_->accumulator));
}

bool GradientHook::fits(const at::Tensor& parameter) const {
  const auto& expected = impl_->accumulator->input_metadata(0);
  return expected.options().dtype() == parameter.options().dtype() && expected.device() == parameter.device();
}

bool GradientHook::all_are_accumulated_now() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen == nullptr || chosen->empty();
}

bool GradientHook::is_accumulated_now() const {
  if (all_are_accumulated_now()) return true;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  const auto found = chosen->find(&*impl_->accumulator);
  return found != chosen->end() && found->second.needed_;
}

bool GradientHook::is_in_current_graph() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes != nullptr && nodes->contains(&*impl_->accumulator) && is_accumulated_now();
}

bool GradientHook::is_attached(const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == impl_->accumulator;
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
        if (!gradient.defined()) return gradient;
        const double by = factor();
        if (by == 0) return at::zeros_like(gradient);  // also where it is not finite
        return by == 1 ? gradient : gradient.mul(by);
      })) {}

GradientScale::~GradientScale() {
  if (parameter_.defined()) parameter_.remove_hook(hook_);
}

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

bool owns_gradient(const at::Tensor& gradient, const at::Tensor* added) {
  std::size_t holders = 1;
  const auto shares = [&](const at::TensorBase& other) {
    return other.has_storage() && other.storage().is_alias_of(gradient.storage());
  };
  if (added != nullptr && added->defined() && !added->is_same(gradient) && gradient.has_storage() && shares(*added)) {
    // autograd still passes it on. If it is a view, it keeps its base alive.
    if (added->use_count() == 1) ++holders;
    if (added->is_view() && shares(added->_base()) && added->_base().use_count() == 1) ++holders;
  }
  return owns_its_memory(gradient, holders);
}

struct EndOfBackward::Calls {
  std::function<void()> ended;
  std::function<void()> lost;
};

// torch keeps it in a std::function until the backward ends, and destroys it without a call if that fails. Copying
// moves: torch never copies it, though std::function asks for it.
class EndOfBackward::Notice {
 public:
  explicit Notice(std::shared_ptr<const Calls> calls) : calls_(std::move(calls)) {}
  Notice(const Notice& other) : calls_(std::exchange(other.calls_, nullptr)) {}
  Notice& operator=(const Notice&) = delete;
  ~Notice() {
    if (calls_ != nullptr) calls_->lost();
  }
  void operator()() { std::exchange(calls_, nullptr)->ended(); }

  // std::function puts it on the heap by these.
  static void* operator new(std::size_t) { return pool().take(); }
  static void operator delete(void* block) { pool().give_back(block); }
  static void* operator new(std::size_t, void* place) { return place; }
  static void operator delete(void*, void*) {}

 private:
  static BlockPool& pool() {
    static BlockPool& instance = *new BlockPool(sizeof(Notice));
    return instance;
  }
  mutable std::shared_ptr<const Calls> calls_;
};

EndOfBackward::EndOfBackward(std::function<void()> ended, std::function<void()> lost)
    : calls_(std::make_shared<const Calls>(Calls{std::move(ended), std::move(lost)})) {}

EndOfBackward::~EndOfBackward() = default;

void EndOfBackward::await() { torch::autograd::Engine::get_default_engine().queue_callback(Notice(calls_)); }

}  // namespace lockstep::internal
