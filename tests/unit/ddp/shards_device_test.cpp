// Lockstep mode with models on a device: the same bits at any number of ranks, and those of the host, whose kernels the
// device that only tests have borrows.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/nn/sync_batch_norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
#include "tests/unit/ddp/models.h"

namespace shards_device_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kShards = 4;

using Tensors = std::vector<at::Tensor>;

// With a buffer of which each shard has another value.
struct CountingImpl : torch::nn::Module {
  CountingImpl() { mean = register_buffer("mean", at::zeros({8})); }
  at::Tensor forward(const at::Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.detach().mean(0).to(at::kFloat), 0.1);
    }
    return x;
  }
  at::Tensor mean;
};
TORCH_MODULE(Counting);

// Parameters, buffers and losses of some steps, on the host.
Tensors train(const ProcessGroup& group, at::Device device, at::ScalarType type) {
  torch::nn::Sequential model(torch::nn::Linear(6, 8), Counting(), torch::nn::Linear(8, 3));
  double shift = 0;
  for (auto& parameter : model->parameters()) {
    const at::NoGradGuard no_grad;
    parameter.copy_(wave(parameter.sizes(), shift += 1));
    move_to(parameter, device);
    if (type != at::kFloat) parameter.set_data(parameter.detach().to(type));
  }
  for (const auto& buffer : model->buffers()) move_to(buffer, device);
  DistributedDataParallel ddp(model, group, {.lockstep = {.shards = kShards, .seed = 7}});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Tensors state;
  for (int step = 0; step < 3; ++step) {
    const double loss = ddp.for_each_shard([&](Shard shard) {
      CHECK((at::globalContext().deterministicAlgorithms() || device.is_cpu()));
      const at::Tensor x = wave({5, 6}, 10.0 * step + shard.index).to(type).to(device);
      const at::Tensor of_shard = ddp(x).square().mean() + at::rand({}).item<double>();
      of_shard.backward();
      return of_shard.item<double>();
    });
    state.push_back(at::scalar_tensor(loss, at::kDouble));
    optimizer.step();
  }
  for (const auto& parameter : ddp.parameters()) state.push_back(parameter.detach().to(at::kCPU));
  for (const auto& buffer : ddp.module()->buffers()) state.push_back(buffer.to(at::kCPU));
  return state;
}

}  // namespace

// feature: L-08
TEST_CASE("models on a device have the bits of the host, at any number of ranks") {
  test_device();  // which makes the device known
  const WithFakeCommunicators with;
  const bool before = at::globalContext().deterministicAlgorithms();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Tensors expected;
    run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) { expected = train(group, at::kCPU, type); });
    for (const int ranks : {1, 2, 4}) {
      for (const Over transport : kTransports) {
        run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
          const Tensors found = train(group, test_device(), type);
          REQUIRE(found.size() == expected.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            CAPTURE(i);
            CHECK(at::equal(found[i], expected[i]));
          }
        });
      }
    }
  }
  CHECK(at::globalContext().deterministicAlgorithms() == before);
}

TEST_CASE("a model on a device with a SyncBatchNorm is refused in lockstep mode") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Sequential model(torch::nn::Linear(6, 8), SyncBatchNorm(torch::nn::BatchNormOptions(8), group));
    for (const auto& parameter : model->parameters()) move_to(parameter, test_device());
    CHECK_ERROR(error_of([&] {
                  DistributedDataParallel ddp(model, group, {.lockstep = {.shards = kShards, .seed = 7}});
                }),
                ErrorKind::invalid_argument, "cannot have a SyncBatchNorm");
  });
}

}  // namespace shards_device_test
