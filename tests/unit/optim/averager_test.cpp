#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <map>

#include "lockstep/train/checkpoint/training_run.h"
#include "lockstep/train/ddp/comm_hooks/post_local_sgd.h"
#include "lockstep/train/optim/model_averager.h"
#include "lockstep/train/optim/post_local_sgd_optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wave.h"

namespace averager_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::optim::SGD;
using torch::optim::SGDOptions;

namespace {

// One element, which is this rank's number, and has a gradient.
at::Tensor number_of(const ProcessGroup& group) {
  at::Tensor number = at::full({1}, group.rank(), at::kDouble).set_requires_grad(true);
  number.mutable_grad() = at::zeros({1}, at::kDouble);
  return number;
}

// At which of the first steps the averager averages, and what it makes of the ranks' numbers then.
std::map<int, double> averages_of(ModelAverager& averager, const ProcessGroup& group, int steps) {
  std::map<int, double> averages;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor number = number_of(group);
    averager.average_parameters({number});
    CHECK(averager.step() == step + 1);
    const double value = number.item<double>();
    if (value != group.rank()) averages[step] = value;
  }
  return averages;
}

}  // namespace

TEST_CASE("periodic: the first step after the warm-up, and every so many from there") {
  for (const Over transport : {Over::arena, Over::links}) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      PeriodicModelAverager averager(group, {.period = 3, .warmup_steps = 2});
      CHECK(averages_of(averager, group, 10) == std::map<int, double>{{2, 0.5}, {5, 0.5}, {8, 0.5}});
      PeriodicModelAverager resumed(group, {.period = 3, .warmup_steps = 2});
      resumed.set_step(5);
      const at::Tensor number = number_of(group);
      resumed.average_parameters({number});
      CHECK(number.item<double>() == 0.5);
    });
  }
}

TEST_CASE("ranks whose gradients are of different parameters are told which, though sizes fit") {
  for (const Over transport : {Over::arena, Over::links}) {
    const auto thrown = run_group(2, transport, [](const ProcessGroup& group) {
      const auto parameters = make_parameters({{4}, {4}, {4}, {4}});
      set_gradients({parameters[0], parameters[1], parameters[group.rank() == 0 ? 2 : 3]}, 0);
      PeriodicModelAverager(group, {.period = 2}).average_parameters(parameters);
    });
    for (const auto& error : thrown) {
      CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::desync,
                  "average_parameters of parameters 0-2", "average_parameters of parameters 0-1 3");
    }
  }
}

TEST_CASE("all types are averaged, and what has no gradient is passed over") {
  run_group_or_throw(4, Over::arena, [](const ProcessGroup& group) {
    auto parameters = make_parameters({{50, 3}, {7}, {5}}, group.rank());
    parameters[1] = parameters[1].detach().to(at::kDouble).set_requires_grad(true);
    set_gradients({parameters[0], parameters[1]}, 0);
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : parameters) {
      expected.push_back(at::stack(group.all_gather(parameter.detach())).mean(0));
    }
    const at::Tensor untouched = parameters[2].detach().clone();
    PeriodicModelAverager averager(group, {.period = 2});
    averager.average_parameters(parameters);
    for (std::size_t i = 0; i < 2; ++i) CHECK(parameters[i].allclose(expected[i], 1e-6, 1e-7));
    CHECK(at::equal(parameters[2], untouched));
    CHECK(parameters[0].requires_grad());
  });
}

TEST_CASE("hierarchical: the largest period that divides the step has its group average") {
  run_worlds_or_throw(4, [](const ProcessGroup& group) {
    HierarchicalModelAverager averager(
        group, {.levels = {{.period = 2, .group_size = 2}, {.period = 4, .group_size = 4}}, .warmup_steps = 3});
    const double pair = group.rank() < 2 ? 0.5 : 2.5;
    CHECK(averages_of(averager, group, 9) == std::map<int, double>{{4, 1.5}, {6, pair}, {8, 1.5}});
  });
}

TEST_CASE("plans that cannot work are refused before anything is sent") {
  run_group_or_throw(4, Over::arena, [](const ProcessGroup& group) {
    const auto refused = [&](const std::vector<AveragingLevel>& levels, const std::string& text) {
      CHECK_ERROR(error_of([&] { HierarchicalModelAverager(group, {.levels = levels}); }), ErrorKind::invalid_argument,
                  "HierarchicalModelAverager: " + text);
    };
    refused({}, "the list of levels is empty; give at least one");
    refused({{0, 4}}, "period 0 follows 0; periods must be above 0, and grow from level to level");
    refused({{4, 2}, {4, 4}}, "period 4 follows 4");
    refused({{2, 3}, {4, 4}}, "group size 3 follows 1; sizes must divide the 4 ranks, and must not shrink");
    refused({{2, 4}, {4, 2}}, "group size 2 follows 4");
    refused({{2, 2}}, "the groups of the last level have only 2 of the 4 ranks; add a level");
    CHECK_ERROR(error_of([&] { PeriodicModelAverager(group, {.period = 0}); }), ErrorKind::invalid_argument,
                "PeriodicModelAverager: the period is 0; give 1 or more");
    CHECK_ERROR(error_of([&] { PeriodicModelAverager(group, {.period = 2, .warmup_steps = -1}); }),
                ErrorKind::invalid_argument, "warmup_steps is -1; give 0 or more");
  });
}

TEST_CASE("the optimizer steps by itself and then averages; its state says where the averager was") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto make = [&](const at::Tensor& parameter) {
      return PostLocalSgdOptimizer(SGD(std::vector{parameter}, SGDOptions(1).momentum(0.5)),
                                   PeriodicModelAverager(group, {.period = 2, .warmup_steps = 1}));
    };
    const at::Tensor parameter = at::zeros({1}).set_requires_grad(true);
    auto optimizer = make(parameter);
    CHECK(optimizer.averager().step() == 0);
    const auto step = [&](auto& stepped, const at::Tensor& of) {
      const at::Tensor loss = stepped.step([&] {
        stepped.zero_grad();
        at::Tensor sum = of.mul(group.rank() + 1).sum();  // its gradient is 1 on rank 0, and 2 on rank 1
        sum.backward();
        return sum;
      });
      CHECK(loss.defined());
      return of.item<double>();
    };
    CHECK(step(optimizer, parameter) == -1.0 * (group.rank() + 1));  // warm-up
    CHECK(step(optimizer, parameter) == -(1 + 1.5 + 2 + 3) / 2);     // momentum: 1.5 times the gradient; averaged
    const Checkpoint state = optimizer.state_dict();

    const at::Tensor other = parameter.detach().clone().set_requires_grad(true);
    auto resumed = make(other);
    resumed.load_state_dict(state);
    CHECK(resumed.averager().step() == 2);
    for (int more = 0; more < 3; ++more) CHECK(step(resumed, other) == step(optimizer, parameter));

    Checkpoint damaged = state;
    damaged.metadata["optimizer.averager.step"] = "2x";
    CHECK_ERROR(error_of([&] { resumed.load_state_dict(damaged); }), ErrorKind::corrupt_data,
                "optimizer.averager.step is '2x', not a number of steps");
    CHECK(resumed.averager().step() == 5);
    damaged.metadata.erase("optimizer.averager.step");
    resumed.load_state_dict(damaged);
    CHECK(resumed.averager().step() == 0);
  });
}

TEST_CASE("a hook that averages over a part of the ranks refuses gradients with weights") {
  run_worlds_or_throw(2, [](const ProcessGroup& group) {
    const CommHook hook = post_local_sgd_hook(std::make_shared<PostLocalSgdState>(PostLocalSgdState{.start_step = 1}));
    const auto average = [&](bool is_weighted) {
      GradBucket bucket(0, true, at::full({3}, group.rank(), at::kFloat), {}, {}, 0, 1, is_weighted);
      return hook(bucket, group)()[0].item<double>();
    };
    CHECK(average(true) == 0.5);
    CHECK(average(false) == group.rank());
    CHECK_ERROR(error_of([&] { (void)average(true); }), ErrorKind::invalid_argument,
                "post_local_sgd_hook cannot be used with gradients that are divided by the weights of all ranks",
                "use Weighting::ranks");
  });
}

TEST_CASE("the hook averages over all ranks until start_step, and then within the subgroup, or not at all") {
  run_worlds_or_throw(4, [](const ProcessGroup& group) {
    const auto state = std::make_shared<PostLocalSgdState>(
        PostLocalSgdState{.start_step = 2, .subgroup = group.split(group.rank() / 2)});
    const auto lonely = std::make_shared<PostLocalSgdState>(PostLocalSgdState{.start_step = 1});
    const auto backward = [&](const CommHook& hook) {
      std::vector<double> results;
      std::vector<BucketResult> pending;
      for (const bool is_last : {false, true}) {
        GradBucket bucket(is_last ? 1 : 0, is_last, at::full({3}, group.rank() + (is_last ? 10 : 0), at::kFloat), {},
                          {});
        pending.push_back(hook(bucket, group));
      }
      for (const BucketResult& result : pending) {
        const at::Tensor gradients = result();
        CHECK(gradients.numel() == 3);
        results.push_back(gradients[2].item<double>());
      }
      return results;
    };
    const CommHook hook = post_local_sgd_hook(state), lonely_hook = post_local_sgd_hook(lonely);
    const std::vector<double> all{1.5, 11.5};
    const double pair = group.rank() < 2 ? 0.5 : 2.5, own = group.rank();
    CHECK(backward(hook) == all);
    CHECK(state->step == 1);
    CHECK(backward(hook) == all);
    CHECK(backward(hook) == std::vector<double>{pair, pair + 10});
    CHECK(state->step == 2);
    CHECK(backward(lonely_hook) == all);
    CHECK(backward(lonely_hook) == std::vector<double>{own, own + 10});
  });
}

TEST_CASE("a run does not keep an optimizer between whose averagings the ranks differ, and says so on all ranks") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    torch::nn::Linear model(2, 1);
    DistributedDataParallel ddp(model, group);
    PostLocalSgdOptimizer local(SGD(ddp.parameters(), SGDOptions(0.1)), PeriodicModelAverager(group, {.period = 4}));
    TrainingRun run(group, {.directory = folder.path(), .every = 1});
    const std::string why = "leaves the ranks with different parameters";
    CHECK_ERROR(error_of([&] { run.add_step(1, 1, ddp, local); }), ErrorKind::invalid_argument, why);
    SGD plain(ddp.parameters(), SGDOptions(0.1));
    run.save(ddp, plain);
    group.barrier();
    CHECK_ERROR(error_of([&] { run.resume(ddp, local); }), ErrorKind::invalid_argument, why);
    run.resume(ddp, plain);
  });
}

}  // namespace averager_test
