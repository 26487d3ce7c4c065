// Lets a model compute in another type than its parameters have: during a forward, and during a backward through it,
// each parameter holds a copy of its values in the compute type. At all other times it holds its master weights, so
// code that reads or changes parameters between forward and backward sees those.
// DdpBase, reducer -> PrecisionCast -> parameters. Belongs to one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep::internal {

class PrecisionCast {
 public:
  enum class Holds { master_weights, compute_copies };

  // parameters: also frozen ones; those of floating point are cast. dtype: to compute in.
  PrecisionCast(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);
  ~PrecisionCast();
  PrecisionCast(const PrecisionCast&) = delete;
  PrecisionCast& operator=(const PrecisionCast&) = delete;

  // Called when the values that parameters hold have changed: torch then forgets where to accumulate their gradients.
  void on_change(std::function<void(Holds now)> call) { on_change_ = std::move(call); }

  // Gives every parameter a fresh copy of its values, for a forward. Nothing happens if they hold one.
  void cast_for_forward();
  // The same for a forward that no backward will go through: the copies of the last forward are kept for its backward.
  void cast_for_evaluation();
  // Gives them the copies of the last forward again, for its backward.
  void cast_for_backward();
  // Does nothing if they hold their master weights.
  void restore_master_weights() noexcept;
  // Gives gradients the type of the master weights.
  void restore_gradient_dtype();
  bool is_cast() const { return holds_ == Holds::compute_copies; }
  // Whether the parameter is one that is cast.
  bool covers(const at::Tensor& parameter) const;

 private:
  struct Cast {
    at::Tensor parameter;
    at::Tensor master;   // while the parameter holds the copy
    at::Tensor compute;  // the copy of the last forward
  };
  const at::ScalarType dtype_;
  std::vector<Cast> casts_;
  std::function<void(Holds)> on_change_;
  Holds holds_ = Holds::master_weights;
};

}  // namespace lockstep::internal
