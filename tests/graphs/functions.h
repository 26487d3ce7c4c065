// Functions with a backward of their own, of the kinds that programs write and that gradient synchronisation stumbles
// over. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>

namespace lockstep::testing {

// What a backward throws that was asked to. torch ends the process for other exceptions in threads of its own.
struct Blown : std::exception {};

// x; its backward throws Blown if `blows`.
at::Tensor fuse(const at::Tensor& x, bool blows);
// a + b; backward returns the one tensor that it was given as both gradients.
at::Tensor same_gradient_sum(const at::Tensor& a, const at::Tensor& b);
// The inner product of (a, b) with (data, data); backward returns `data` itself as both gradients: as views of it, or
// as tensors over its memory.
at::Tensor saved_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& data, bool as_blobs);
// x; `a` gets an undefined gradient.
at::Tensor without_gradient(const at::Tensor& x, const at::Tensor& a);
// tanh(x weight + bias), kept by its input only and computed again in backward.
at::Tensor recomputed_layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace lockstep::testing
