// A batch that is computed in parts, since all of it takes too much memory. batch -> forwards and backwards -> .grad.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/train/ddp/options.h"

namespace lockstep {

// The mean loss of a batch whose gradients are added up over `parts` forwards and backwards, fewer if the batch has
// fewer samples, and averaged over the ranks with the last of them. The result is that of one backward.
//   backward_in_parts(ddp, x, y, 4, [](const at::Tensor& output, const at::Tensor& y) { return F::cross_entropy(...);
//   })
// loss_of: the mean loss of a part. Fails as backward() does. A weight from set_weight() is that of the batch.
template <class Ddp, class Loss>
double backward_in_parts(Ddp& ddp, const at::Tensor& x, const at::Tensor& y, int parts, Loss&& loss_of) {
  const std::vector<at::Tensor> xs = x.chunk(parts), ys = y.chunk(parts);
  const bool weighs_forwards = ddp.options().weighting == Weighting::samples;  // each by its samples
  struct WeightOfBatch {
    ~WeightOfBatch() { ddp.set_weight(weight); }
    Ddp& ddp;
    const std::optional<double> weight;
  } const whole{ddp, ddp.weight()};
  double sum = 0;
  const auto backward_of = [&](std::size_t part) {
    const bool is_empty = y.size(0) == 0;  // then so is each part
    const double share = is_empty ? 1.0 / static_cast<double>(xs.size())
                                  : static_cast<double>(ys[part].size(0)) / static_cast<double>(y.size(0));
    if (whole.weight) ddp.set_weight(*whole.weight * share);
    const at::Tensor loss = loss_of(ddp(xs[part]), ys[part]);
    (weighs_forwards ? loss : loss.mul(share)).backward();
    sum += share * loss.template item<double>();
  };
  {
    const auto guard = ddp.no_sync();
    for (std::size_t part = 0; part + 1 < xs.size(); ++part) backward_of(part);
  }
  backward_of(xs.size() - 1);
  return sum;
}

}  // namespace lockstep
