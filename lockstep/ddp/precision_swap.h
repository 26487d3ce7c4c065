// Lets a model compute in another type than its parameters have: for the time of a forward and its backward each
// parameter holds a lower copy of its values. Replica -> PrecisionSwap -> parameters. Belongs to one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep {

class PrecisionSwap {
 public:
  // Floating parameters only are swapped; `parameters`: all of the module, frozen ones too.
  PrecisionSwap(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);
  ~PrecisionSwap();
  PrecisionSwap(const PrecisionSwap&) = delete;
  PrecisionSwap& operator=(const PrecisionSwap&) = delete;

  // Gives every parameter a fresh lower copy. Gradient accumulators change with the type: hooks must be set anew.
  void lower();
  // Gives them their own values back, and gradients the parameters' type. Nothing happens if they have them.
  void restore();
  bool is_lowered() const { return lowered_; }

 private:
  struct Swapped {
    at::Tensor parameter;
    at::Tensor own;  // its values, in its own type
  };
  const at::ScalarType dtype_;
  std::vector<Swapped> swapped_;
  bool lowered_ = false;
};

}  // namespace lockstep
