// SyncBatchNorm where gradients are weighted by samples: recomputed in backward, and among wrappers that weigh
// otherwise.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "lockstep/train/nn/sync_batch_norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/recomputed.h"
#include "tests/support/wave.h"

namespace weights_test {

using namespace lockstep;
using namespace lockstep::testing;
using torch::nn::BatchNormOptions;

namespace {

constexpr std::int64_t kSamples[] = {6, 2};  // by rank

// Linear-norm-tanh-Linear; the first two may be computed again in backward.
struct NetImpl : torch::nn::Module {
  NetImpl(const ProcessGroup& group, bool is_recomputed) : recomputes(is_recomputed) {
    first = register_module("first", torch::nn::Linear(3, 4));
    norm = register_module("norm", SyncBatchNorm(BatchNormOptions(4), group));
    last = register_module("last", torch::nn::Linear(4, 3));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (const at::Tensor& parameter : parameters()) parameter.copy_(values(parameter.sizes(), ++shift));
  }
  static at::Tensor values(at::IntArrayRef sizes, double shift) {
    return at::sin(at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.37 + shift).reshape(sizes);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = first->forward(x);
    return last->forward(at::tanh(recomputes ? recomputed(h, norm) : norm->forward(h)));
  }
  // Of all ranks' samples together, by torch's own function.
  at::Tensor alone(const at::Tensor& x) {
    const at::Tensor h = at::batch_norm(first->forward(x), norm->weight, norm->bias, {}, {}, true, 0.1, 1e-5, false);
    return last->forward(at::tanh(h));
  }
  torch::nn::Linear first = nullptr, last = nullptr;
  SyncBatchNorm norm = nullptr;
  bool recomputes;
};

at::Tensor batch_of(int rank, int step) { return NetImpl::values({kSamples[rank], 3}, 10 * step + 3 * rank); }

at::Tensor loss_of(const at::Tensor& y) { return y.square().mean(); }

// The mean of all samples, or of ranks.
at::Tensor mean_of(const at::Tensor& y, Weighting weighting) {
  if (weighting == Weighting::samples) return loss_of(y);
  return (loss_of(y.narrow(0, 0, kSamples[0])) + loss_of(y.narrow(0, kSamples[0], kSamples[1]))) / 2;
}

void check_close(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(i);
    CHECK(at::allclose(parameters[i].grad(), expected[i], 1e-9, 1e-12));
  }
}

}  // namespace

TEST_CASE("gradients are those of all samples together, also through a part that is computed again") {
  for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
    for (const bool recomputes : {false, true}) {
      CAPTURE(recomputes);
      run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
        const auto model = std::make_shared<NetImpl>(group, recomputes);
        DistributedDataParallel ddp(model, group, {.weighting = weighting});
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          loss_of(ddp(batch_of(group.rank(), step).requires_grad_())).backward();
          const at::Tensor all = at::cat({batch_of(0, step), batch_of(1, step)});
          const at::Tensor loss = mean_of(model->alone(all), weighting);
          check_close(model->parameters(), torch::autograd::grad({loss}, model->parameters()));
        }
      });
    }
  }
}

TEST_CASE("in a join, a backward through an own batch and a repeated one counts the own, also behind a layer") {
  for (const Weighting weighting : {Weighting::ranks, Weighting::samples}) {
    run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<NetImpl>(group, false);
      DistributedDataParallel ddp(model, group, {.weighting = weighting});
      std::vector<int> batches(group.rank() == 0 ? 2 : 1);
      std::iota(batches.begin(), batches.end(), 0);
      at::Tensor total = at::zeros({}, at::kDouble);
      join(group, batches, [&](int step) { total = total + loss_of(ddp(batch_of(group.rank(), step))); });
      total.backward();
      const at::Tensor both = model->alone(at::cat({batch_of(0, 0), batch_of(1, 0)}));
      const at::Tensor of_0 = loss_of(both.narrow(0, 0, kSamples[0])) + loss_of(model->alone(batch_of(0, 1)));
      const at::Tensor of_1 = loss_of(both.narrow(0, kSamples[0], kSamples[1]));
      // By samples rank 0 has 6 + 6 of them, and rank 1 has 2.
      const at::Tensor loss = weighting == Weighting::ranks ? (of_0 + of_1) / 2 : (of_0 * 12 + of_1 * 2) / 14;
      check_close(model->parameters(), torch::autograd::grad({loss}, model->parameters()));
    });
  }
}

TEST_CASE("a loss without weight counts for nothing, also if it is NaN") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<NetImpl>(group, false);
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    ddp.set_weight(group.rank() == 0 ? 6 : 0);
    at::Tensor loss = loss_of(ddp(batch_of(group.rank(), 0)));
    if (group.rank() == 1) loss = loss * std::numeric_limits<double>::quiet_NaN();
    loss.backward();
    const at::Tensor y = model->alone(at::cat({batch_of(0, 0), batch_of(1, 0)}));
    check_close(model->parameters(),
                torch::autograd::grad({loss_of(y.narrow(0, 0, kSamples[0]))}, model->parameters()));
  });
}

TEST_CASE("a batch of float16 without weight is refused on all ranks") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    const auto model = std::make_shared<NetImpl>(group, false);
    model->to(at::kHalf);
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    ddp.set_weight(group.rank() == 0 ? 6 : 0);
    loss_of(ddp(batch_of(group.rank(), 0).to(at::kHalf))).backward();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(contains(error_of([&] { std::rethrow_exception(error); }).what(),
                   "SyncBatchNorm on rank 1: the weight of its batch is 0 or almost 0"));
  }
}

TEST_CASE("a layer takes the weights of its own wrapper, whatever a wrapper above it does") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto lower = std::make_shared<NetImpl>(group, false);
    const auto upper = std::make_shared<torch::nn::LinearImpl>(3, 2);
    upper->to(at::kDouble);
    DistributedDataParallel by_ranks(lower, group);
    DistributedDataParallel by_samples(upper, group, {.weighting = Weighting::samples});
    loss_of(by_samples(by_ranks(batch_of(group.rank(), 0)))).backward();
    const at::Tensor y = upper->forward(lower->alone(at::cat({batch_of(0, 0), batch_of(1, 0)})));
    const auto check = [&](const torch::nn::Module& model, Weighting weighting) {
      const auto parameters = model.parameters();
      check_close(parameters, torch::autograd::grad({mean_of(y, weighting)}, parameters, {}, /*retain_graph=*/true));
    };
    check(*lower, Weighting::ranks);
    check(*upper, Weighting::samples);
  });
}

}  // namespace weights_test
