#include "lockstep/ddp/average_gradients.h"

#include "lockstep/group/derived.h"

namespace lockstep {

void average_gradients(const std::vector<at::Tensor>& parameters, const ProcessGroup& group) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  for (const auto& [dtype, tensors] : by_dtype(gradients)) {
    group.all_reduce(tensors, ReduceOp::avg, {.name = "average_gradients"});
  }
}

}  // namespace lockstep
