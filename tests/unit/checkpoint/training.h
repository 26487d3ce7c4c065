// A rank of a training that has a TrainingRun, for its tests.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string>

#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/checkpoint/training_run.h"

namespace lockstep::testing {

// A rank of a training, with everything that belongs to it.
struct Training {
  Training(const ProcessGroup& group, const TrainingRunOptions& options) : ddp(model, group), run(group, options) {}

  void step() {
    optimizer.zero_grad();
    const at::Tensor loss = ddp(at::ones({2, 3}) * static_cast<double>(run.position.step + 1)).pow(2).mean();
    loss.backward();
    optimizer.step();
    run.add_step(loss.item<double>(), 2, ddp, optimizer);
  }
  std::string digest() { return sha256_of(*model, optimizer); }

  torch::nn::Linear model{3, 1};
  DistributedDataParallel<torch::nn::Linear> ddp;
  torch::optim::SGD optimizer{ddp.parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)};
  TrainingRun run;
};

}  // namespace lockstep::testing
