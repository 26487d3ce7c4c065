// What the parity programs share: the losses of models.py and the comparison with the values that Python wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace parity {

// The largest |got - expected| / max(1, |expected|) that counts as equal.
constexpr double kTolerance = 1e-5;

// The largest such difference of any element; infinite if shapes or types differ or anything is not a number.
double difference(const at::Tensor& got, const at::Tensor& expected);

// Error{invalid_argument} if the file has no such tensor.
const at::Tensor& tensor_of(const lockstep::Checkpoint& file, const std::string& name);

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target);
// Over the last dimension; all others count as samples.
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target);

}  // namespace parity
