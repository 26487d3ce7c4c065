#include "lockstep/train/ddp/average_gradients.h"

#include <string>

#include "lockstep/comm/group/derived.h"
#include "lockstep/train/ddp/parameter_numbers.h"

namespace lockstep {

void average_gradients(const std::vector<at::Tensor>& parameters, const ProcessGroup& group) {
  std::vector<at::Tensor> gradients;
  std::vector<std::size_t> numbers;
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    if (!parameters[number].grad().defined()) continue;
    gradients.push_back(parameters[number].grad());
    numbers.push_back(number);
  }
  const std::string name = internal::name_with_numbers("average_gradients", numbers);
  for (const auto& [dtype, tensors] : internal::by_dtype(gradients)) {
    group.all_reduce(tensors, ReduceOp::avg, {.name = name});
  }
}

}  // namespace lockstep
