// A TrainingRun with everything that a State has.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/training_run.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/optim/grad_scaler.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"

namespace run_state_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Training {
  explicit Training(const ProcessGroup& group)
      : ddp(model, group),
        optimizer(ddp.parameters(), group, torch::optim::SGDOptions(0.1).momentum(0.9)),
        sampler(12, group) {}

  State state() {
    return {.model = ddp, .optimizer = optimizer, .sampler = sampler, .scaler = scaler, .hook = hook, .user = user};
  }
  void step() {
    optimizer.zero_grad();
    scaler.scale(ddp(at::ones({2, 3})).sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  }

  torch::nn::Linear model{3, 1};
  DistributedDataParallel<torch::nn::Linear> ddp;
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer;
  DistributedSampler sampler;
  GradScaler scaler{{.init_scale = 4, .growth_interval = 3}};
  PowerSgd hook;
  nlohmann::json user;
};

}  // namespace

TEST_CASE(
    "a run keeps what a State has besides: a sharded optimizer, a sampler, a scaler, a hook, a program's values") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training first(group), second(group);
    first.ddp.register_comm_hook(first.hook.hook());
    TrainingRun run(group, {.directory = folder.path(), .every = 2});
    first.sampler.set_epoch(7);
    first.user = {{"best", 0.5}};
    for (int step = 0; step < 2; ++step) {
      first.step();
      run.add_step(1, 2, first.state());
    }
    second.ddp.register_comm_hook(second.hook.hook());
    TrainingRun resumed(group, {.directory = folder.path()});
    CHECK(resumed.resume(second.state()).step == 2);
    CHECK(at::equal(second.model->weight, first.model->weight));
    CHECK(second.sampler.epoch() == 7);
    CHECK(second.user == first.user);
    CHECK(second.scaler.state().growth_tracker == 2);
    for (Training* each : {&first, &second}) each->step();
    CHECK(at::equal(second.model->weight, first.model->weight));  // with momentum
    CHECK(second.scaler.get_scale() == 8);
    CHECK(load(folder.path(), second.state(), group).step == 2);  // it is a set like others
  });
}

}  // namespace run_state_test
