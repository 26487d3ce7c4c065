#include "lockstep/ddp/average_gradients.h"

#include <map>

namespace lockstep {

void average_gradients(const std::vector<at::Tensor>& parameters, const ProcessGroup& group) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) by_dtype[parameter.scalar_type()].push_back(parameter.grad());
  }
  for (const auto& [dtype, gradients] : by_dtype)
    group.all_reduce(gradients, ReduceOp::avg, {.name = "average_gradients"});
}

}  // namespace lockstep
