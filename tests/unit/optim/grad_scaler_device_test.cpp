// GradScaler on a device that only tests have: for what the host waits. A program of its own: autograd makes the
// threads of the devices that it knows at the first backward of a process.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/optim/clip_gradients.h"
#include "lockstep/train/optim/grad_scaler.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_groups.h"
#include "tests/support/test_device.h"

namespace grad_scaler_device_test {

using namespace lockstep;
using namespace lockstep::testing;
using torch::optim::SGD;
using torch::optim::SGDOptions;

namespace {

at::Device device_of(int index) { return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

at::Tensor parameter_on(at::Device device) { return at::full({4}, 0.5F, device).requires_grad_(); }

at::Tensor input_on(at::Device device, bool is_infinite) {
  const float last = is_infinite ? std::numeric_limits<float>::infinity() : 3.0F;
  return at::tensor({1.0F, 2.0F, 0.0F, last}).to(device);
}

// What the host waits for in five iterations, every other one with an infinite gradient.
void check_waits(GradScaler& scaler, at::Device device) {
  const at::Tensor parameter = parameter_on(device);
  SGD optimizer({parameter}, SGDOptions(0.1));
  for (int i = 0; i < 5; ++i) {
    const bool is_infinite = i % 2 == 1;
    const at::Tensor x = input_on(device, is_infinite);
    optimizer.zero_grad();
    const std::int64_t before = fake_device_waits_here();
    scaler.scale((parameter * x).sum()).backward();
    scaler.unscale_(optimizer);
    CHECK(fake_device_waits_here() == before);
    CHECK(scaler.step(optimizer) == !is_infinite);
    CHECK(fake_device_waits_here() == before + 1);
    scaler.update();
    CHECK(fake_device_waits_here() == before + 1);
  }
  CHECK(scaler.get_scale() == 4);
  const at::Tensor stepped = at::full({4}, 0.5F) - 3 * 0.1F * at::tensor({1.0F, 2.0F, 0.0F, 3.0F});
  CHECK(at::allclose(parameter.detach().to(at::kCPU), stepped));
}

}  // namespace

TEST_CASE("the host waits for a device in step() alone, once") {
  use_fake_device();
  GradScaler scaler({.init_scale = 16});
  check_waits(scaler, kFakeDevice);
}

TEST_CASE("it waits for no more where ranks agree over a communicator of the devices") {
  use_fake_device();
  const WithFakeCommunicators with;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    GradScaler scaler(group, {.init_scale = 16});
    check_waits(scaler, device_of(group.rank()));
  });
}

TEST_CASE("in a step of a DistributedDataParallel in float16 the host waits once") {
  use_fake_device();
  const WithFakeCommunicators with;
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    torch::nn::Linear model(4, 2);
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.detach().fill_(0.5);
      move_to(parameter, device_of(group.rank()));
    }
    DistributedDataParallel ddp(model, group,
                                {.mixed_precision = {.param_dtype = at::kHalf}, .compare_parameters_every = 0});
    SGD optimizer(ddp.parameters(), SGDOptions(0.1));
    GradScaler scaler({.init_scale = 16});
    for (int step = 0; step < 5; ++step) {
      const bool is_infinite = step == 3;
      const at::Tensor x = input_on(device_of(group.rank()), is_infinite && group.rank() == 1).unsqueeze(0);
      group.barrier();
      const std::int64_t before = fake_device_synchronizations();
      group.barrier();
      optimizer.zero_grad();
      scaler.scale(ddp(x).to(at::kFloat).sum()).backward();
      scaler.unscale_(optimizer);
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : ddp.parameters()) gradients.push_back(parameter.grad());
      clip_grads_with_norm(ddp.parameters(), 1.0, get_total_norm(gradients));
      CHECK(scaler.step(optimizer) == !is_infinite);
      scaler.update();
      group.barrier();
      // The first steps compare the models, and learn the order of gradients.
      if (step >= 2) CHECK(fake_device_synchronizations() == before + group.size());
      group.barrier();
    }
    CHECK(scaler.get_scale() == 8);
  });
}

TEST_CASE("gradients may lie on several devices, and an infinite one is found on each") {
  use_fake_device();
  const std::vector<at::Device> devices{device_of(1), device_of(2), at::Device(at::kCPU)};
  std::vector<at::Tensor> parameters;
  for (const at::Device device : devices) parameters.push_back(parameter_on(device));
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 16});
  for (int infinite = -1; infinite < 3; ++infinite) {
    CHECK(scaler.scale(at::full({}, 1.0F, device_of(1))).device() == device_of(1));
    CHECK(scaler.scale(at::full({}, 1.0F, device_of(2))).device() == device_of(2));
    for (int i = 0; i < 3; ++i) {
      const auto which = static_cast<std::size_t>(i);
      parameters[which].mutable_grad() = input_on(devices[which], i == infinite);
    }
    CHECK(scaler.step(optimizer) == (infinite < 0));
    scaler.update(16.0);
    for (int i = 0; i < 3 && infinite < 0; ++i) {
      CHECK(at::equal(parameters[static_cast<std::size_t>(i)].grad().to(at::kCPU),
                      at::tensor({1.0F, 2.0F, 0.0F, 3.0F}) / 16));
    }
  }
}

}  // namespace grad_scaler_device_test
