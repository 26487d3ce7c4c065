#include "examples/models/toy.h"

namespace models {

ToyImpl::ToyImpl()
    : net1(register_module("net1", torch::nn::Linear(10, 10))),
      net2(register_module("net2", torch::nn::Linear(10, 5))) {}

torch::Tensor ToyImpl::forward(torch::Tensor x) { return net2(net1(x).relu()); }

}  // namespace models
