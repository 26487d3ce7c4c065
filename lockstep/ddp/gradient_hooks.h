// The places where autograd lets DDP look in. autograd -> gradient hooks -> reducer.
// Hooks run on the thread that runs backward. What a hook throws is thrown by backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
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

  // Once each parameter has a GradientHook, and when it has another one.
  void find_accumulators();
  // Before each forward.
  void begin_forward() { seen_.clear(); }
  // Follows the graph from an output of the model.
  void from(const at::Tensor& output);
  // By parameter: what has been found since the last forget().
  const std::vector<bool>& found() const { return found_; }
  void forget() { found_.assign(found_.size(), false); }

 private:
  const std::vector<at::Tensor> parameters_;
  std::vector<bool> found_;
  std::unordered_map<const void*, std::size_t> accumulators_;  // where a parameter's gradient arrives
  // Nodes of this forward's graph, which its outputs keep.
  std::unordered_set<const void*> seen_;
  std::vector<const void*> open_;
};

// Calls `call` when backward reaches this output of a model, before anything behind it is computed. No effect on an
// output that was not computed, or requires no gradient. The graph keeps `call`.
void when_backward_reaches(const at::Tensor& output, std::shared_ptr<const std::function<void()>> call);

// Calls a function at the end of backwards. Takes no memory for one; what torch takes is one list a backward.
class EndOfBackward {
 public:
  explicit EndOfBackward(std::function<void()> call);
  // A backward that is under way still calls it.
  ~EndOfBackward();
  EndOfBackward(const EndOfBackward&) = delete;
  EndOfBackward& operator=(const EndOfBackward&) = delete;

  // REQUIRES: called during backward, once. The call comes when this backward has computed everything, before
  // backward() returns; it does not if the backward throws.
  void await();

 private:
  struct Call;
  std::shared_ptr<Call> call_;
};

}  // namespace lockstep
