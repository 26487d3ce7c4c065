// What save() keeps of unusual types, and what it cannot keep.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wave.h"

namespace storable_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using torch::nn::Linear;
using torch::optim::Adam;

TEST_CASE("parameters of complex numbers and buffers of 8 bits come back bit for bit, also in parts") {
  struct WavesImpl : torch::nn::Module {
    WavesImpl() {
      waves = register_parameter("waves", at::complex(wave({1100, 600}, 1), wave({1100, 600}, 2)));
      register_parameter("one", at::complex(wave({}, 3), wave({}, 4)).to(at::kComplexDouble));
      register_buffer("scales", wave({40}, 5).to(at::kFloat8_e4m3fn));
      register_buffer("exponents", at::arange(40).to(at::kByte).view(at::kFloat8_e8m0fnu));
    }
    at::Tensor forward(const at::Tensor& x) {
      return (at::view_as_real(waves).pow(2).sum() + at::view_as_real(parameters()[1]).pow(2).sum()) * x;
    }
    at::Tensor waves;
  };
  using Waves = torch::nn::ModuleHolder<WavesImpl>;
  const TemporaryDirectory folder;
  std::array<std::string, 2> expected;
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel<Waves> ddp(Waves(std::make_shared<WavesImpl>()), world);
    Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
    const State state{.model = ddp, .optimizer = optimizer, .step = 1};
    CHECK_FALSE(load_if_any(folder.path(), state, world));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      ddp(at::ones({})).backward();
      optimizer.step();
    }
    save(folder.path(), state, world);
    expected.at(static_cast<std::size_t>(world.rank())) = sha256_of(*ddp.module(), optimizer);
  });
  const SetReader set(set_path(folder.path(), 1));
  CHECK(set.manifest().tensors.at("model.waves").dtype == "C64");
  CHECK(std::ranges::any_of(set.manifest().tensors, [](const auto& each) {
    return each.second.dtype == "C64" && each.second.pieces.size() == 2;
  }));
  CHECK(set.manifest().tensors.at("model.one").dtype == "C128");
  CHECK(set.manifest().tensors.at("model.exponents").dtype == "F8_E8M0");
  run_worlds_or_throw(3, [&](const World& world) {
    DistributedDataParallel<Waves> ddp(Waves(std::make_shared<WavesImpl>()), world);
    Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& each : ddp.module()->parameters()) each.zero_();
    }
    REQUIRE(load_if_any(folder.path(), {.model = ddp, .optimizer = optimizer}, world));
    CHECK(sha256_of(*ddp.module(), optimizer) == expected[0]);
    CHECK(sha256_of(*ddp.module(), optimizer) == expected[1]);
  });
}

TEST_CASE("what cannot be saved is said before the training begins") {
  struct OwnOptimizer : torch::optim::Optimizer {
    using Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Linear linear(2, 2);
    linear->register_buffer("two\nlines", at::ones({1}));
    DistributedDataParallel<Linear> ddp(linear, world);
    const auto refused = [&](const State& state) {
      return error_of([&] { load_if_any(folder.path(), state, world); });
    };
    CHECK_ERROR(refused({.model = ddp}), ErrorKind::invalid_argument, "this model or optimizer cannot be saved",
                "control characters", "'model.two?lines'");
    Linear other(2, 2);
    other->register_buffer("adjacency", at::eye(3).to_sparse());
    CHECK_ERROR(refused({.model = other}), ErrorKind::invalid_argument, "'model.adjacency' is not dense");
    OwnOptimizer optimizer(other->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
    CHECK_ERROR(refused({.optimizer = optimizer}), ErrorKind::invalid_argument,
                "this model or optimizer cannot be saved", "only SGD, Adam");
  });
}

}  // namespace storable_test
