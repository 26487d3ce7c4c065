// Lets a model compute in another type than its parameters have: during a forward, and during a backward through it,
// each parameter holds a lower copy of its values. At all other times it holds its own, so whatever reads or changes
// parameters between forward and backward meets those. DdpBase, reducer -> PrecisionCast -> parameters. Belongs to one
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep {

class PrecisionCast {
 public:
  // Floating parameters only are swapped; `parameters`: all of the module, frozen ones too.
  PrecisionCast(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);
  ~PrecisionCast();
  PrecisionCast(const PrecisionCast&) = delete;
  PrecisionCast& operator=(const PrecisionCast&) = delete;

  // Called whenever the parameters' type has changed: torch forgets then where their gradients are accumulated.
  // is_low: which of the two types they have now.
  void on_change(std::function<void(bool is_low)> call) { on_change_ = std::move(call); }

  // Gives every parameter a fresh lower copy, for a forward. Nothing happens if they have one.
  void lower();
  // The same for a forward that no backward will go through: the copies of the last lower() are kept for theirs.
  void lower_for_evaluation();
  // Gives them the copies of the last lower() again, for the backward of its forward.
  void lower_again();
  // Gives them their own values back. Nothing happens if they have them.
  void restore() noexcept;
  // Gives gradients the parameters' own type.
  void restore_gradients();
  bool is_lowered() const { return lowered_; }
  // Whether the parameter is one that is swapped.
  bool swaps(const at::Tensor& parameter) const;

 private:
  struct Swapped {
    at::Tensor parameter;
    at::Tensor own;  // its values, in its own type, while it holds the others
    at::Tensor low;  // of the last lower()
  };
  const at::ScalarType dtype_;
  std::vector<Swapped> swapped_;
  std::function<void(bool)> on_change_;
  bool lowered_ = false;
};

}  // namespace lockstep
