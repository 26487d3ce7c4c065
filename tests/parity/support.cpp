#include "tests/parity/support.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace parity {

double difference(const at::Tensor& got, const at::Tensor& expected) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) return kInfinite;
  if (got.numel() == 0) return 0;
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  const at::Tensor distance = got.detach().to(at::kDouble).sub(wanted).abs().div(wanted.abs().clamp_min(1));
  const double worst = distance.max().item<double>();
  return std::isnan(worst) ? kInfinite : worst;
}

const at::Tensor& tensor_of(const lockstep::Checkpoint& file, const std::string& name) {
  const auto found = file.tensors.find(name);
  if (found != file.tensors.end()) return found->second;
  throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "the reference file has no tensor named " + name);
}

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, -2), target.flatten());
}

}  // namespace parity
