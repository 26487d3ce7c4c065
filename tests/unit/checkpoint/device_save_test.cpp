// Saves beside training on a device: what is saved are the values at the time of the call, and every copy is ordered.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "tests/support/fake_device.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_device.h"

namespace device_save_test {

using namespace lockstep;
using namespace lockstep::testing;

TEST_CASE("a save in the background reads a device's tensors behind the streams of the program") {
  use_fake_device();
  for (const bool copy_in_background : {false, true}) {
    const TemporaryDirectory folder;
    run_worlds_or_throw(2, [&](const World& world) {
      const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(world.rank()));
      const c10::StreamGuard guard(fake_stream(device, 3));
      torch::nn::Linear model(40, 30), loaded(40, 30);
      for (const auto& parameter : model->parameters()) move_to(parameter, device);
      const at::NoGradGuard no_grad;
      AsyncSaver saver(folder.path(), world, {.copy_in_background = copy_in_background});
      at::Tensor expected;
      for (int step = 0; step < 3; ++step) {
        for (const auto& parameter : model->parameters()) parameter.fill_(step + 0.5);
        expected = model->weight.to(at::kCPU);
        for (const auto& parameter : model->parameters()) parameter.mul_(1);  // queued, and not waited for
        saver.save({.model = model, .step = step});
        model->forward(at::ones({2, 40}, device));
        saver.wait_for_copy();
        for (const auto& parameter : model->parameters()) parameter.fill_(-1);  // the optimizer's step
        saver.wait();
      }
      world.barrier();
      load(folder.path(), {.model = loaded}, world);
      CHECK(at::equal(loaded->weight, expected));
    });
  }
}

}  // namespace device_save_test
