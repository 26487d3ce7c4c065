// The places where autograd lets DDP look in. autograd -> gradient hooks -> reducer.
// Hooks run on the thread that runs backward. What a hook throws is thrown by backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

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

// Multiplies what backward is about to add to this parameter's gradient by factor(), unless that is 1. Removes itself
// when destroyed.
class GradientScale {
 public:
  GradientScale(at::Tensor parameter, std::function<double()> factor);
  GradientScale(GradientScale&&) noexcept = default;
  ~GradientScale();

 private:
  at::Tensor parameter_;
  unsigned hook_;
};

// Which parameters a graph leads to.
class ParameterSearch {
 public:
  explicit ParameterSearch(std::vector<at::Tensor> parameters);
  ~ParameterSearch();

  // Follows the graph from an output of the model.
  void from(const at::Tensor& output);
  // By parameter: what has been found since the last forget().
  const std::vector<bool>& found() const { return found_; }
  void forget() { found_.assign(found_.size(), false); }

 private:
  const std::vector<at::Tensor> parameters_;
  std::vector<bool> found_;
};

// Calls `call` when backward reaches this output of a model, before anything behind it is computed. No effect on an
// output that requires no gradient.
void when_backward_reaches(const at::Tensor& output, std::function<void()> call);

// REQUIRES: called during backward. Calls `call` when this backward has computed everything, before backward() returns.
void at_end_of_backward(std::function<void()> call);

}  // namespace lockstep
