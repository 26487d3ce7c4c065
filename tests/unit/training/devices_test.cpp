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

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/skip.h"
#include "tests/unit/ddp/models.h"

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

void use_fake_device() {
  static const bool once = [] {
    register_fake_device();
    let_fake_device_compute();
    return true;
  }();
  REQUIRE(once);
}

}  // namespace

// feature: F-14
TEST_CASE("the order of a sampler is made in the host's memory, whatever device is the current one") {
  use_fake_device();
  const c10::DeviceGuard guard(at::Device(at::kPrivateUse1, 3));
  DistributedSampler sampler(10, 3, 0);
  CHECK(std::is_same_v<decltype(sampler.indices()), std::span<const std::int64_t>>);
  CHECK(std::vector<std::int64_t>(sampler.indices().begin(), sampler.indices().end()) ==
        std::vector<std::int64_t>{4, 5, 0, 2});
}

// feature: E-16, E-17
TEST_CASE("inputs on the host are moved to the device of the model, and outputs to the one that is wanted") {
  use_fake_device();
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
  use_fake_device();
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
  use_fake_device();
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const auto device = [&](int index) {
      return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(2 * group.rank() + index));
    };
    Halves model(device(0), device(1)), alone(at::kCPU, at::kCPU);
    for (const Halves& each : {model, alone}) {
      const at::NoGradGuard no_grad;
      for (auto& parameter : each->parameters()) parameter.copy_(wave(parameter.sizes(), parameter.dim()));
    }
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1), reference(alone->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const auto batch = [&](int rank) { return wave({3, 4}, 10 * step + rank); };
      optimizer.zero_grad();
      (ddp(batch(group.rank())) - 1).square().mean().backward();
      optimizer.step();
      reference.zero_grad();
      for (const int rank : {0, 1}) ((alone->forward(batch(rank)) - 1).square().mean() / 2).backward();
      reference.step();
    }
    const auto trained = model->parameters(), wanted = alone->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CHECK(trained[i].device() == device(i < 2 ? 0 : 1));
      CHECK(at::allclose(trained[i].to(at::kCPU), wanted[i]));
    }
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
