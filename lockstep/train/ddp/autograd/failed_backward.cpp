#include "lockstep/train/ddp/autograd/failed_backward.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/failure_note.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"

namespace lockstep::internal {
namespace {

// Leaked on purpose, as the engine below: backwards may run while static destructors do.
struct Listeners {
  std::mutex mutex;
  std::vector<const FailedBackward*> all;  // protected by mutex
};

Listeners& listeners() {
  static Listeners& instance = *new Listeners;
  return instance;
}

}  // namespace

void report_failed_backward(const char* text) noexcept {
  const std::lock_guard lock(listeners().mutex);
  const auto is_of_this_thread = [](const FailedBackward* each) { return each->thread_ == std::this_thread::get_id(); };
  const bool is_claimed = std::ranges::any_of(listeners().all, is_of_this_thread);
  for (const FailedBackward* each : listeners().all) {
    if (!is_claimed || is_of_this_thread(each)) each->report_(text);
  }
}

namespace {

// torch's own engine computes: a process has one set of threads for its devices, which belong to the engine that made
// the first backward.
class ReportingEngine final : public torch::autograd::Engine {
 public:
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    try {
      if (accumulate_grad) check_inputs(outputs);
      return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      report_failed_backward(text_of_exception().c_str());
      throw;
    }
  }
  static Engine& base() { return get_base_engine(); }
};

torch::autograd::Engine& reporting_engine() {
  static ReportingEngine& engine = *new ReportingEngine;
  return engine;
}

template <class Engine>
bool engine_is() {
  return typeid(torch::autograd::Engine::get_default_engine()) == typeid(Engine);
}

}  // namespace

FailedBackward::FailedBackward(std::function<void(const char*)> report) : report_(std::move(report)) {
  const std::lock_guard lock(listeners().mutex);
  if (engine_is<torch::autograd::Engine>()) torch::autograd::set_default_engine_stub(reporting_engine);
  listeners().all.push_back(this);
}

FailedBackward::~FailedBackward() {
  const std::lock_guard lock(listeners().mutex);
  std::erase(listeners().all, this);
  if (!listeners().all.empty() || !engine_is<ReportingEngine>()) return;
  torch::autograd::set_default_engine_stub(&ReportingEngine::base);  // backwards in it go on
}

void FailedBackward::claim_thread() {
  const std::lock_guard lock(listeners().mutex);
  thread_ = std::this_thread::get_id();
}

}  // namespace lockstep::internal
