// The three places where autograd lets DDP look in. autograd -> gradient hooks -> reducer.
// Hooks run on the thread that runs backward. What a hook throws is thrown by backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace lockstep {

// Calls on_ready() each time backward has accumulated this parameter's gradient. Removes itself when destroyed.
class GradientHook {
 public:
  // REQUIRES: parameter is a leaf that requires a gradient.
  GradientHook(const at::Tensor& parameter, std::function<void()> on_ready);
  GradientHook(GradientHook&&) noexcept;
  ~GradientHook();

  // Whether some GradientHook watches the parameter already.
  static bool watches(const at::Tensor& parameter);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls `call` when backward reaches this output of a model, before anything behind it is computed. No effect on an
// output that requires no gradient.
void when_backward_reaches(const at::Tensor& output, std::function<void()> call);

// REQUIRES: called during backward. Calls `call` when this backward has computed everything, before backward() returns.
void at_end_of_backward(std::function<void()> call);

}  // namespace lockstep
