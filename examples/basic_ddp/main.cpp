// One training step of a small model, on ranks that the program starts by itself.
//   build/bin/basic_ddp [ranks] [toy|linear]
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "examples/arguments.h"
#include "examples/models/toy.h"
#include "lockstep/lockstep.h"

namespace {

template <class Model>
void train_one_step(const lockstep::World& world, Model model, std::int64_t outputs_size) {
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), 0.001);

  optimizer.zero_grad();
  const at::Tensor outputs = ddp(at::randn({20, 10}));
  const at::Tensor labels = at::randn({20, outputs_size});
  torch::nn::MSELoss()(outputs, labels).backward();
  optimizer.step();

  std::vector<at::Tensor> flat;
  for (const auto& parameter : ddp.parameters()) flat.push_back(parameter.detach().flatten());
  const auto everyone = world.all_gather(at::cat(flat));
  const bool same =
      std::all_of(everyone.begin(), everyone.end(), [&](const auto& other) { return at::equal(other, everyone[0]); });
  log_rank0(world, "after 1 step all %d ranks hold %s %d parameters", world.size(), same ? "the same" : "DIFFERENT",
            static_cast<int>(everyone[0].numel()));
}

void demo_basic(int rank) {
  std::printf("Running basic DDP example on rank %d.\n", rank);
  const auto world = lockstep::init_process_group();
  train_one_step(world, models::Toy(), 5);
}

void demo_basic_linear(int rank) {
  std::printf("Running basic DDP example on rank %d.\n", rank);
  const auto world = lockstep::init_process_group();
  train_one_step(world, torch::nn::Linear(10, 10), 10);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int ranks = number_at(1, argc, argv, 2);
    const bool linear = choice_at(2, argc, argv, {"toy", "linear"}) == "linear";
    lockstep::spawn(argc, argv, linear ? demo_basic_linear : demo_basic, {.nprocs = ranks});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "basic_ddp: %s\n", error.what());
    return 1;
  }
}
