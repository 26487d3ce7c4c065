// Inputs and weights from arithmetic, since torch's generator is one for all threads.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lockstep::testing {

inline at::Tensor wave(at::IntArrayRef sizes, double shift) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::sin(at::arange(count, at::kFloat) * 0.37 + shift) * 0.1).reshape(sizes);
}

// Leaves that require a gradient.
inline std::vector<at::Tensor> make_parameters(const std::vector<std::vector<std::int64_t>>& shapes, double shift = 0) {
  std::vector<at::Tensor> parameters;
  for (const auto& shape : shapes) parameters.push_back(wave(shape, shift += 1).set_requires_grad(true));
  return parameters;
}

inline void set_gradients(const std::vector<at::Tensor>& parameters, double shift) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = wave(parameter.sizes(), shift += 1).to(parameter.scalar_type()).clone();
  }
}

}  // namespace lockstep::testing
