#include "lockstep/ddp/checks/finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>

namespace lockstep {

bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  const at::NoGradGuard no_grad;
  // One element that is not finite makes the sum so. The sum of finite ones may overflow: then they are looked at.
  const bool is_narrow = at::isReducedFloatingType(tensor.scalar_type());
  const at::Tensor sum = is_narrow ? at::sum(tensor, at::kFloat) : at::sum(tensor);
  return at::isfinite(sum).item<bool>() || at::isfinite(tensor).all().item<bool>();
}

}  // namespace lockstep
