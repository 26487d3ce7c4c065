// Models on other devices than the host, with devices that only tests have. A program of its own: autograd makes the
// threads of the devices that it knows at the first backward of a process.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/ddp/models.h"

namespace devices_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Each half on a device of its own; forward moves what goes from one to the other.
struct HalvesImpl : torch::nn::Module {
  HalvesImpl(at::Device one, at::Device other) : first_device(one), second_device(other) {
    for (const auto& parameter : first->parameters()) move_to(parameter, one);
    for (const auto& parameter : second->parameters()) move_to(parameter, other);
  }
  at::Tensor forward(const at::Tensor& x) {
    given = x.device();
    return second->forward(first->forward(x.to(first_device)).relu().to(second_device));
  }
  at::Device first_device, second_device;
  std::optional<at::Device> given;
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 6));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(6, 2));
};
TORCH_MODULE(Halves);

void use_trained_device() {
  static const bool once = [] {
    use_fake_device();
    // Programs may compute gradients before they have a DistributedDataParallel.
    const at::Tensor x = at::ones({2}, kFakeDevice).requires_grad_();
    (x * x).sum().backward();
    return at::equal(x.grad().to(at::kCPU), at::full({2}, 2.0F));
  }();
  REQUIRE(once);
}

void fill_equally(const Halves& one, const Halves& other) {
  const at::NoGradGuard no_grad;
  for (const Halves& each : {one, other}) {
    for (auto& parameter : each->parameters()) parameter.copy_(wave(parameter.sizes(), parameter.dim()));
  }
}

// Three steps of each rank with batches of its own, and of `alone` with those of all ranks.
void train_beside(DistributedDataParallel<Halves>& ddp, Halves& alone, const ProcessGroup& group) {
  torch::optim::SGD optimizer(ddp.parameters(), 0.1), reference(alone->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto batch = [&](int rank) { return wave({3, 4}, 10 * step + rank); };
    optimizer.zero_grad();
    (ddp(batch(group.rank())) - 1).square().mean().backward();
    optimizer.step();
    reference.zero_grad();
    for (int rank = 0; rank < group.size(); ++rank) {
      ((alone->forward(batch(rank)) - 1).square().mean() / group.size()).backward();
    }
    reference.step();
  }
}

void check_equal(const Halves& one, const Halves& other, double tolerance = 1e-8) {
  const auto ones = one->parameters(), others = other->parameters();
  for (std::size_t i = 0; i < ones.size(); ++i) {
    CHECK(at::allclose(ones[i].to(at::kCPU), others[i].to(at::kCPU), 1e-5, tolerance));
  }
}

}  // namespace

// feature: F-14
TEST_CASE("the order of a sampler is made in the host's memory, whatever device is the current one") {
  use_trained_device();
  const c10::DeviceGuard guard(at::Device(at::kPrivateUse1, 3));
  DistributedSampler sampler(10, 3, 0);
  CHECK(std::is_same_v<decltype(sampler.indices()), std::span<const std::int64_t>>);
  CHECK(std::vector<std::int64_t>(sampler.indices().begin(), sampler.indices().end()) ==
        std::vector<std::int64_t>{4, 5, 0, 2});
}

// feature: E-16, E-17
TEST_CASE("inputs on the host are moved to the device of the model, and outputs to the one that is wanted") {
  use_trained_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const int own = 2 * group.rank(), other = own + 1;
    const auto device = [](int index) { return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); };
    const at::Tensor x = wave({3, 4}, group.rank());
    for (const int output : {own, other}) {
      Halves model(device(own), device(own));
      DistributedDataParallel ddp(
          model, group,
          output == own ? DdpOptions{.device_ids = {own}} : DdpOptions{.device_ids = {own}, .output_device = other});
      const at::Tensor found = ddp(x);
      CHECK(model->given == device(own));
      CHECK(found.device() == device(output));
      CHECK(at::equal(found.to(at::kCPU), model->forward(x.to(device(own))).to(at::kCPU)));
    }
  });
}

// feature: M-01, M-03
TEST_CASE("a model on two devices takes no device of ours, and gets its inputs as they are") {
  use_trained_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto device = [&](int index) {
      return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(2 * group.rank() + index));
    };
    Halves model(device(0), device(1));
    const at::Tensor x = wave({3, 4}, group.rank());
    for (const DdpOptions& options :
         {DdpOptions{.device_ids = {2 * group.rank()}}, DdpOptions{.output_device = 2 * group.rank() + 1}}) {
      CHECK_ERROR(error_of([&] { DistributedDataParallel ddp(model, group, options); }), ErrorKind::invalid_argument,
                  "device_ids and output_device are for a module on one device");
    }
    DistributedDataParallel ddp(model, group);
    const at::Tensor output = ddp(x);
    CHECK(model->given == at::Device(at::kCPU));
    CHECK(output.device() == device(1));
  });
}

// feature: M-01
TEST_CASE("a model on two devices trains as one that has all ranks' batches") {
  use_trained_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto device = [&](int index) {
      return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(2 * group.rank() + index));
    };
    Halves model(device(0), device(1)), alone(at::kCPU, at::kCPU);
    fill_equally(model, alone);
    DistributedDataParallel ddp(model, group);
    train_beside(ddp, alone, group);
    const auto trained = model->parameters();
    for (std::size_t i = 0; i < trained.size(); ++i) CHECK(trained[i].device() == device(i < 2 ? 0 : 1));
    check_equal(model, alone);
  });
}

// feature: L-02
TEST_CASE("a batch on another device than the model is refused with both" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(4, 2);
    model->to(at::Device(at::kCUDA, 0));
    DistributedDataParallel ddp(model, group);
    std::string text;
    try {
      ddp(wave({3, 4}, group.rank()));
    } catch (const std::exception& error) {
      text = error.what();
    }
    CHECK(contains(text, "cuda:0"));
    CHECK(contains(text, "cpu"));
  });
}

// feature: E-16, E-17, L-05
TEST_CASE("a rank with a GPU trains as one without, over NCCL if nobody names a backend" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  const at::Device gpu(at::kCUDA, 0);
  for (const std::string backend : {"", "native"}) {
    const World world = init_process_group({.backend = backend, .rank = 0, .world_size = 1, .device = gpu});
    Halves model(gpu, gpu), alone(at::kCPU, at::kCPU);
    fill_equally(model, alone);
    DistributedDataParallel ddp(model, world, {.device_ids = {0}});
    train_beside(ddp, alone, world);
    CHECK(model->given == gpu);       // batches are on the host
    check_equal(model, alone, 1e-6);  // a GPU adds in another order
  }
}

// feature: H-07
TEST_CASE("a checkpoint of a GPU comes back to it, and to the host" * needs("gpu")) {
  if (!at::hasCUDA()) return skip("no CUDA device");
  const TemporaryDirectory folder;
  const std::string path = folder / "model.safetensors";
  const at::Device gpu(at::kCUDA, 0);
  Halves saved(gpu, gpu), loaded(gpu, gpu), host(at::kCPU, at::kCPU);
  Checkpoint checkpoint;
  add_module(checkpoint, *saved);
  save_checkpoint(path, checkpoint);
  load_module(load_checkpoint(path), *loaded);
  load_module(load_checkpoint(path), *host);
  CHECK(loaded->parameters()[0].device() == gpu);
  check_equal(loaded, host);
  check_equal(saved, host);
}

}  // namespace devices_test
