// What follows for_each_shard() in a step of lockstep mode: it must not depend on the number of ranks or threads
// either.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>

#include "lockstep/train/optim/clip_gradients.h"
#include "lockstep/train/optim/model_averager.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/unit/ddp/shard_worlds.h"

namespace lockstep_mode_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGD;
using torch::optim::SGDOptions;

namespace {

// Its weight has more elements than one thread's share of an elementwise operation.
struct BigImpl : torch::nn::Module {
  BigImpl() {
    first = register_module("first", torch::nn::Linear(12, 9000));
    last = register_module("last", torch::nn::Linear(9000, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(at::relu(first->forward(x))); }
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE(Big);

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&, const ProcessGroup& group)>;

Tensors train_with(const ProcessGroup& group, const MakeOptimizer& make, int threads, bool clips) {
  at::set_num_threads(threads);
  Big model;
  set_weights(model);
  DistributedDataParallel ddp(model, group, kLockstep);
  const auto optimizer = make(ddp.parameters(), group);
  std::vector<double> numbers;
  for (int step = 0; step < 3; ++step) {
    numbers.push_back(ddp.for_each_shard([&](const Shard& shard) {
      const at::Tensor loss = (ddp(wave({4, 12}, shift_of(shard))) - 1).square().mean();
      loss.backward();
      return loss.item<double>();
    }));
    if (clips) numbers.push_back(clip_grad_norm(ddp.parameters(), numbers.back() / 100));
    optimizer->step();
  }
  return state_of(ddp, numbers);
}

void check_any_ranks_and_threads(const MakeOptimizer& make, bool clips, const MakeOptimizer& expected_from) {
  const int threads = at::get_num_threads();
  Tensors expected;
  run_group_or_throw(1, Over::arena,
                     [&](const ProcessGroup& group) { expected = train_with(group, expected_from, 1, clips); });
  for (const int ranks : {1, 2, 4}) {
    for (const int count : {1, 2, 3}) {
      INFO(ranks, " ranks with ", count, " threads");
      run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
        check_same(train_with(group, make, count, clips), expected);
      });
    }
  }
  at::set_num_threads(threads);
}

template <class Local, class Options>
MakeOptimizer plain(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters, const ProcessGroup&) {
    return std::make_unique<Local>(parameters, options);
  };
}

template <class Local, class Options>
MakeOptimizer spread(const Options& options) {
  return [options](const std::vector<at::Tensor>& parameters, const ProcessGroup& group) {
    return std::make_unique<ZeroRedundancyOptimizer<Local>>(parameters, group, options);
  };
}

}  // namespace

TEST_CASE("optimizers have the same bits in lockstep mode on any number of ranks, with any number of threads") {
  const auto momentum = SGDOptions(0.1).momentum(0.9).weight_decay(1e-3);
  check_any_ranks_and_threads(plain<SGD>(momentum), false, plain<SGD>(momentum));
  check_any_ranks_and_threads(plain<Adam>(AdamOptions(1e-2)), false, plain<Adam>(AdamOptions(1e-2)));
  check_any_ranks_and_threads(plain<AdamW>(AdamWOptions(1e-2)), false, plain<AdamW>(AdamWOptions(1e-2)));
}

TEST_CASE("so have optimizers whose state is spread over the ranks, and they are those of a plain one") {
  check_any_ranks_and_threads(spread<Adam>(AdamOptions(1e-2)), false, plain<Adam>(AdamOptions(1e-2)));
}

TEST_CASE("averagers are refused the parameters of a model in lockstep mode, and take them back afterwards") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const Big model;
    PeriodicModelAverager averager(group, {.period = 2});
    {
      const DistributedDataParallel ddp(model, group, kLockstep);
      CHECK_ERROR(error_of([&] { averager.average_parameters(model->parameters()); }), ErrorKind::invalid_argument,
                  "average_parameters: these are parameters of a model in lockstep mode");
      CHECK(averager.step() == 0);
      CHECK_ERROR(error_of([&] { DistributedDataParallel again(model, group); }), ErrorKind::invalid_argument,
                  "is wrapped already");
    }
    averager.average_parameters(model->parameters());
    CHECK(averager.step() == 1);
  });
}

TEST_CASE("so has clipping by the norm") {
  check_any_ranks_and_threads(plain<SGD>(SGDOptions(0.1)), true, plain<SGD>(SGDOptions(0.1)));
}

TEST_CASE("norms have the same bits with any number of threads, where torch's have not") {
  const int threads = at::get_num_threads();
  at::Tensor parameter = at::zeros({300'001}).requires_grad_();
  parameter.mutable_grad() = wave({300'001}, 3);
  bool torchs_differ = false;
  for (const double norm_type : {0.5, 1.0, 2.0, 3.0}) {
    const auto norm = [&] { return clip_grad_norm({parameter}, 1e12, {.norm_type = norm_type}); };
    const auto torchs = [&] { return at::linalg_vector_norm(parameter.grad(), norm_type).item<double>(); };
    at::set_num_threads(1);
    const double expected = norm(), torchs_expected = torchs();
    for (const int count : {2, 3}) {
      at::set_num_threads(count);
      CHECK(norm() == expected);
      CHECK(at::get_num_threads() == count);
      torchs_differ = torchs_differ || torchs() != torchs_expected;
    }
  }
  CHECK(torchs_differ);  // or the test says nothing
  at::set_num_threads(threads);
}

}  // namespace lockstep_mode_test
