// Hooks where autograd accumulates gradients, and where a backward ends. autograd -> gradient hooks -> reducer.
// Hooks run on the thread that runs backward. backward() throws the exceptions of hooks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"

namespace torch::autograd {
struct Edge;
}

namespace lockstep::internal {

// Watches the place where autograd accumulates a parameter's gradient. Removes itself when destroyed.
class GradientHook {
 public:
  // arrived: called each time backward has accumulated the gradient, with the tensor that autograd added, whose memory
  // the gradient may have taken over.
  // REQUIRES: parameter is a leaf that requires a gradient.
  GradientHook(const at::Tensor& parameter, std::function<void(const at::Tensor& added)> arrived);
  GradientHook(GradientHook&&) noexcept;
  ~GradientHook();

  // Backward throws `error` if its `inputs` request accumulation here. Copies of it are made in any thread.
  void refuse_as_input(const Error& error) const;

  // Makes the watched place the parameter's own again, after its type was changed there and back, or its data were
  // replaced as torch::load() does. REQUIRES: fits().
  void attach(const at::Tensor& parameter) const;
  // Whether gradients of this parameter have the type and device of those that come here.
  bool fits(const at::Tensor& parameter) const;

  // Whether the backward that the calling thread runs can reach this place, and will accumulate there. REQUIRES: called
  // during backward.
  bool is_in_current_graph() const;
  // Whether that backward accumulates here if it reaches this place: autograd::grad does not.
  bool is_accumulated_now() const;
  // Whether it does so in all places that it reaches: it was called without `inputs`.
  static bool all_are_accumulated_now();

  // Whether the parameter's gradients still arrive at this place: a parameter whose type or device was changed by other
  // code has another one.
  bool is_attached(const at::Tensor& parameter) const;

  // Whether some GradientHook watches the parameter already.
  static bool watches(const at::Tensor& parameter);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Multiplies backward's addends to this parameter's gradient by factor(), unless that is 1; times 0 even NaN is 0.
// Removes itself when destroyed.
class GradientScale {
 public:
  GradientScale(at::Tensor parameter, std::function<double()> factor);
  GradientScale(GradientScale&&) noexcept = default;
  ~GradientScale();

 private:
  at::Tensor parameter_;
  unsigned hook_;
};

// To be called before a backward accumulates in these nodes only: throws the refusal of one of them.
void check_inputs(const std::vector<torch::autograd::Edge>& inputs);

// A number of the backward that the calling thread runs, its own in the process; -1 outside.
int current_backward();

// Whether a gradient that has just arrived is the only one to hold its memory. added: the tensor that autograd added,
// or null if none arrives now.
bool owns_gradient(const at::Tensor& gradient, const at::Tensor* added);

// Reports the ends of backwards. Allocates nothing once it is warm; torch allocates one list a backward.
class EndOfBackward {
 public:
  // ended: the backward has computed everything; backward() throws its exceptions.
  // lost: it has ended early, by an exception. Must not throw.
  EndOfBackward(std::function<void()> ended, std::function<void()> lost);
  // A backward that is under way still calls one of them.
  ~EndOfBackward();
  EndOfBackward(const EndOfBackward&) = delete;
  EndOfBackward& operator=(const EndOfBackward&) = delete;

  // REQUIRES: called during backward, once. One of the calls comes before backward() returns.
  void await();

 private:
  struct Calls;
  class Notice;
  std::shared_ptr<const Calls> calls_;
};

}  // namespace lockstep::internal
