// The device that only tests have finds what a GPU may get wrong now and then.
#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace fake_device_test {

using namespace lockstep::testing;

namespace {

c10::Stream side() { return fake_stream(kFakeDevice, 1); }

void wait(c10::Stream waiting, c10::Stream other) {
  c10::Event event(at::kPrivateUse1);
  event.record(other);
  event.block(waiting);
}

bool is_race(const std::string& part) {
  const std::vector<std::string> races = CapturedRaces::take();
  bool found = !races.empty();
  for (const std::string& each : races) {
    CAPTURE(each);
    found &= lockstep::contains(each, part);
  }
  return found;
}

}  // namespace

TEST_CASE("an operator on another stream waits for what it reads, or races") {
  use_fake_device();
  const CapturedRaces captured;
  const at::Tensor x = at::ones({4}, kFakeDevice);
  {
    const c10::StreamGuard guard(side());
    const at::Tensor y = x + 1;
    CHECK(is_race("stream 1 reads 16 bytes (aten::add) that stream 0 writes (aten::fill_)"));
    wait(side(), fake_stream(kFakeDevice, 0));
    const at::Tensor z = x + 1;
    CHECK(CapturedRaces::take().empty());
    CHECK(at::equal(z.to(at::kCPU), at::full({4}, 2.0F)));  // waits for the stream
  }
  x.add_(1);
  CHECK(CapturedRaces::take().empty());
}

TEST_CASE("an operator that writes waits for readers, or races") {
  use_fake_device();
  const CapturedRaces captured;
  const at::Tensor x = at::ones({4}, kFakeDevice);
  wait(side(), fake_stream(kFakeDevice, 0));
  at::Tensor y;
  {
    const c10::StreamGuard guard(side());
    y = x + 1;
  }
  x.add_(1);
  CHECK(is_race("stream 0 writes 16 bytes (aten::add) that stream 1 reads (aten::add)"));
  wait(fake_stream(kFakeDevice, 0), side());
  at::_foreach_add_({x, x.clone()}, 1);
  CHECK(CapturedRaces::take().empty());
}

TEST_CASE("what is copied to the host without waiting is there once the host has waited") {
  use_fake_device();
  const at::Tensor x = at::full({4}, 3.0F, kFakeDevice);
  const at::Tensor here = at::empty({4});
  const std::int64_t before = fake_device_synchronizations();
  here.copy_(x, /*non_blocking=*/true);
  CHECK(fake_device_synchronizations() == before);
  CHECK(at::isnan(here).all().item<bool>());
  c10::Event event(at::kPrivateUse1);
  event.record(fake_stream(kFakeDevice, 0));
  CHECK_FALSE(event.query());
  CHECK(event.query());
  CHECK(at::equal(here, at::full({4}, 3.0F)));
}

TEST_CASE("a copy that waits, an item and a comparison are each a wait of the host") {
  use_fake_device();
  const at::Tensor x = at::full({1}, 3.0F, kFakeDevice);
  const std::int64_t before = fake_device_synchronizations();
  CHECK(x.to(at::kCPU).item<float>() == 3);
  CHECK(fake_device_synchronizations() == before + 1);
  CHECK(x.item<float>() == 3);
  CHECK(fake_device_synchronizations() == before + 2);
  CHECK(at::equal(x, x.clone()));
  CHECK(fake_device_synchronizations() == before + 3);
  (x + 1).sum().mul_(2);
  CHECK(fake_device_synchronizations() == before + 3);
}

TEST_CASE("memory that goes while another stream uses it is a race, unless that is announced") {
  use_fake_device();
  const CapturedRaces captured;
  for (const bool is_announced : {false, true}) {
    at::Tensor x = at::ones({4}, kFakeDevice), y;
    wait(side(), fake_stream(kFakeDevice, 0));
    {
      const c10::StreamGuard guard(side());
      y = x + 1;
    }
    if (is_announced) x.record_stream(side());
    x.reset();
    CHECK(is_race("freed while stream 1 reads it") == !is_announced);
    side().synchronize();
  }
}

TEST_CASE("a copy between devices waits for both, and both for it") {
  use_fake_device();
  const at::Tensor there = at::ones({4}, at::Device(at::kPrivateUse1, 1));
  const at::Tensor here = at::zeros({4}, kFakeDevice);
  here.copy_(there);
  here.add_(1);
  there.add_(1);
  CHECK(at::equal(here.to(at::kCPU), at::full({4}, 2.0F)));
}

TEST_CASE("autograd waits for the streams of its forward") {
  use_fake_device();
  const at::Tensor x = at::ones({2}, kFakeDevice).requires_grad_();
  wait(side(), fake_stream(kFakeDevice, 0));
  at::Tensor loss;
  {
    const c10::StreamGuard guard(side());
    loss = (x * x).sum();
  }
  wait(fake_stream(kFakeDevice, 0), side());
  loss.backward();
  CHECK(at::equal(x.grad().to(at::kCPU), at::full({2}, 2.0F)));
}

}  // namespace fake_device_test
