// What a rank that has joined repeats: together with batches of its own, and under other groups than the join's.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/recomputed.h"
#include "tests/unit/ddp/models.h"

namespace repeated_batches_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

struct Opaque {
  at::Tensor y;
};

// The gradient of mean(x * w) is the mean of x.
template <class Output>
struct ScalarImpl : torch::nn::Module {
  ScalarImpl() { w = register_parameter("w", here(at::zeros({1}))); }
  Output forward(const at::Tensor& x) { return {(x * w).mean()}; }
  at::Tensor w;
};

// The gradient of its state after a batch is the sum over its batches.
struct CellImpl : torch::nn::Module {
  CellImpl() { w = register_parameter("w", here(at::zeros({1}))); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& state) {
    const at::Tensor next = state + (x * w).mean();
    return {next * 1, next};
  }
  at::Tensor w;
};

const at::Tensor& tensor_of(const at::Tensor& output) { return output; }
const at::Tensor& tensor_of(const std::tuple<at::Tensor>& output) { return std::get<0>(output); }
const at::Tensor& tensor_of(const Opaque& output) { return output.y; }

// Rank 0 has batches of 1 and 3, rank 1 one of 10.
std::vector<at::Tensor> batches_of(int rank) {
  if (rank == 1) return {here(at::full({2}, 10.0))};
  return {here(at::full({2}, 1.0)), here(at::full({2}, 3.0))};
}

struct Count {
  Weighting weighting;
  bool by_all;
  double expected;
};
constexpr Count kCounts[] = {{Weighting::ranks, true, 7},    // (1 + 3 + 10) / 2
                             {Weighting::samples, true, 6},  // (2 (1 + 3) + 2 (1 + 3) + 2 x 10) / (2 + 2 + 2)
                             {Weighting::ranks, false, 7}};  // both have contributed

template <class Output>
std::vector<std::exception_ptr> sum_of_losses(const Count& count, Over transport) {
  return run_group(2, transport, [&](const ProcessGroup& group) {
    const auto model = std::make_shared<ScalarImpl<Output>>();
    DistributedDataParallel ddp(model, group, {.weighting = count.weighting});
    at::Tensor total = here(at::zeros({}));
    const auto batches = batches_of(group.rank());
    join(group, batches, [&](const at::Tensor& x) { total = total + tensor_of(ddp(x)); },
         {.divide_by_initial_world_size = count.by_all});
    total.backward();
    CHECK(model->w.grad().template item<double>() == doctest::Approx(count.expected));
  });
}

void rethrow(const std::vector<std::exception_ptr>& errors) {
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

TEST_CASE("of a backward through a rank's own batch and a repeated one, its own counts") {
  for (const Over transport : kTransports) {
    for (const Count& count : kCounts) {
      CAPTURE(count.expected);
      rethrow(sum_of_losses<at::Tensor>(count, transport));
      rethrow(sum_of_losses<std::tuple<at::Tensor>>(count, transport));
    }
  }
}

TEST_CASE("where the repeated batch's outputs cannot be seen, such a backward is an error on all ranks") {
  for (const auto& error : sum_of_losses<Opaque>(kCounts[0], Over::arena)) {
    REQUIRE(error);
    const std::string text = error_of([&] { std::rethrow_exception(error); }).what();
    CHECK(
        contains(text, "on rank 1 a backward pass goes through a batch of this rank and through one that it repeats"));
    CHECK(contains(text, "run a separate backward pass for each batch"));
  }
}

TEST_CASE("so it is where the loss uses of the repeated batch what the module has kept") {
  struct KeepsImpl : ScalarImpl<at::Tensor> {
    at::Tensor forward(const at::Tensor& x) {
      kept = x.mean() * w;
      return (x * w).mean();
    }
    at::Tensor kept;
  };
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<KeepsImpl>();
    DistributedDataParallel ddp(model, group);
    at::Tensor total = here(at::zeros({}));
    join(group, batches_of(group.rank()), [&](const at::Tensor& x) {
      const at::Tensor y = ddp(x);
      total = total + y + model->kept.sum();
    });
    total.backward();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(contains(error_of([&] { std::rethrow_exception(error); }).what(),
                   "a result of the latter that forward() did not return"));
  }
}

TEST_CASE("a forward that backward computes again belongs to the step that it was made in" * on_host()) {
  for (const Count& count : kCounts) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<ScalarImpl<at::Tensor>>();
      const auto ddp = std::make_shared<DistributedDataParallel<std::shared_ptr<ScalarImpl<at::Tensor>>>>(
          model, group, DdpOptions{.weighting = count.weighting});
      at::Tensor total = here(at::zeros({}));
      join(group, batches_of(group.rank()),
           [&](const at::Tensor& x) { total = total + recomputed(x.clone().requires_grad_(), ddp); },
           {.divide_by_initial_world_size = count.by_all});
      total.backward();
      // Each is a backward of its own: by samples (2 x 3) / 2 + (2 x 1 + 2 x 10) / 4.
      CHECK(model->w.grad().item<double>() == doctest::Approx(count.weighting == Weighting::samples ? 8.5 : 7));
    });
  }
}

TEST_CASE("a state that goes from a rank's own batch to a repeated one is trained by the own") {
  for (const Count& count : kCounts) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<CellImpl>();
      DistributedDataParallel ddp(model, group, {.weighting = count.weighting});
      at::Tensor state = here(at::zeros({})), total = here(at::zeros({}));
      join(group, batches_of(group.rank()),
           [&](const at::Tensor& x) {
             const auto [y, next] = ddp(x, state);
             total = total + y;
             state = next;
           },
           {.divide_by_initial_world_size = count.by_all});
      total.backward();
      // Rank 0: 1, then 1 + 3.
      const double expected = count.weighting == Weighting::samples ? (4 * 5 + 2 * 10) / 6.0 : 7.5;
      CHECK(model->w.grad().item<double>() == doctest::Approx(expected));
    });
  }
}

namespace {

struct NormImpl : torch::nn::Module {
  NormImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    layer = register_module("layer", torch::nn::Linear(3, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear layer = nullptr;
};

// After a join over one group, with a wrapper over another one: whether the statistics are those of ranks that had 60
// batches around 100, and not those of ranks with a single batch around 0.
bool follows_long_ranks(const ProcessGroup& joins, const ProcessGroup& trains, bool is_short) {
  const auto model = std::make_shared<NormImpl>();
  DistributedDataParallel ddp(model, trains);
  std::vector<at::Tensor> batches(is_short ? 1 : 60);
  for (at::Tensor& batch : batches) batch = wave({8, 3}, 1) + (is_short ? 0 : 100);
  join(joins, batches, [&](const at::Tensor& x) {
    ddp.zero_grad();
    ddp(x).sum().backward();
  });
  ddp.sync_buffers();
  CHECK(same_on_all_ranks(trains, model->norm->running_mean));
  return model->norm->running_mean.mean().item<double>() > 90;
}

}  // namespace

TEST_CASE("in a join within the step of another one buffers follow a rank with batches of the outer one" * on_host()) {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<NormImpl>();
    DistributedDataParallel ddp(model, group);
    std::vector<at::Tensor> batches(group.rank() == 0 ? 1 : 60);
    for (at::Tensor& batch : batches) batch = wave({8, 3}, 1) + 100 * group.rank();
    join(group, batches, [&](const at::Tensor& x) {
      join(group, std::vector<at::Tensor>{x}, [&](const at::Tensor& part) {
        ddp.zero_grad();
        ddp(part).sum().backward();
      });
    });
    ddp.sync_buffers();
    CHECK(model->norm->running_mean.mean().item<double>() > 90);
  });
}

TEST_CASE("buffers follow a rank with batches, whatever groups the join and the wrapper are over" * on_host()) {
  run_worlds_or_throw(2, [](const World& world) {
    const ProcessGroup group = world.group(), reversed = *group.new_group({1, 0}), twin = *group.split(0);
    for (const ProcessGroup& joins : {group, reversed, twin}) {
      CHECK(follows_long_ranks(joins, group, world.rank() == 0));
      CHECK(follows_long_ranks(joins, reversed, world.rank() == 1));
    }
  });
  run_worlds_or_throw(4, [](const World& world) {
    const ProcessGroup group = world.group(), row = *group.split(world.rank() / 2),
                       column = *group.split(world.rank() % 2);
    CHECK(follows_long_ranks(group, column, world.rank() < 2));
    CHECK(follows_long_ranks(row, column, world.rank() == 0));
  });
}

}  // namespace repeated_batches_test
