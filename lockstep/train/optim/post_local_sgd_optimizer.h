// An optimizer that averages the ranks' parameters after its steps, when its averager says so.
// gradients -> step -> ModelAverager -> parameters. After torch.distributed.optim.PostLocalSGDOptimizer.
//
//   PostLocalSgdOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1),
//                                   PeriodicModelAverager(group, {.period = 4, .warmup_steps = 100}));
//
// It takes the place of the given optimizer: options, state, schedulers and zero_grad() work as before.
// Between averagings the ranks' parameters differ, so TrainingRun does not store it; each rank can save its model and
// state_dict() by save_checkpoint().
// Belongs to one thread. All ranks call step(); it blocks, and fails as ProcessGroup's calls do.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <utility>
#include <vector>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/optim/collective_step.h"
#include "lockstep/train/optim/model_averager.h"

namespace lockstep {

// The optimizer's state, as add_optimizer() stores it, and the averager's step.
Checkpoint post_local_sgd_state(const torch::optim::Optimizer& optimizer, const ModelAverager& averager);
// Errors as of load_optimizer(). If the averager's step is missing, it starts again from 0, with a warning.
void load_post_local_sgd_state(const Checkpoint& state, torch::optim::Optimizer& optimizer, ModelAverager& averager);

template <std::derived_from<torch::optim::Optimizer> Optimizer, std::derived_from<ModelAverager> Averager>
class PostLocalSgdOptimizer : public Optimizer, public internal::LocalStepsOptimizer, public internal::CollectiveStep {
 public:
  PostLocalSgdOptimizer(Optimizer optimizer, Averager averager)
      : Optimizer(std::move(optimizer)), averager_(std::move(averager)) {}

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss = Optimizer::step(std::move(closure));
    std::vector<at::Tensor> parameters;
    for (const auto& group : this->param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    averager_.average_parameters(parameters);
    return loss;
  }

  Checkpoint state_dict() const { return post_local_sgd_state(*this, averager_); }
  void load_state_dict(const Checkpoint& state) { load_post_local_sgd_state(state, *this, averager_); }

  Averager& averager() { return averager_; }
  const Averager& averager() const { return averager_; }
  // For GradScaler.
  const ProcessGroup& step_group() const override { return averager_.group(); }

 private:
  Averager averager_;
};

}  // namespace lockstep
