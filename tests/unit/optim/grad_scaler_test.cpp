#include "lockstep/train/optim/grad_scaler.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/optim/post_local_sgd_optimizer.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/wave.h"

namespace grad_scaler_test {

using namespace lockstep;
using namespace lockstep::testing;
using torch::optim::SGD;
using torch::optim::SGDOptions;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<std::vector<std::int64_t>> kShapes{{4, 3}, {3}, {5}};

// One step with gradients of 2 * scale, or with an infinite one among them.
bool step_with(GradScaler& scaler, torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
               bool is_infinite) {
  const at::Tensor two = scaler.scale(at::full({}, 2.0F));
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::full_like(parameter.detach(), two.item<float>());
  }
  if (is_infinite) parameters.back().mutable_grad()[1] = kInfinity;
  const bool has_stepped = scaler.step(optimizer);
  scaler.update();
  return has_stepped;
}

void check_refused(const std::function<void()>& call, const std::string& text) {
  CHECK_ERROR(error_of(call), ErrorKind::invalid_argument, "GradScaler: ", text);
}

std::stringstream archive_of(const GradScaler& scaler) {
  std::stringstream stream;
  torch::serialize::OutputArchive archive;
  scaler.save(archive);
  archive.save_to(stream);
  return stream;
}

void load_archive(GradScaler& scaler, std::stringstream& stream) {
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  scaler.load(archive);
}

}  // namespace

TEST_CASE("options are checked by name") {
  check_refused([] { GradScaler scaler({.init_scale = 0}); }, "init_scale is 0; it must be above 0 and finite");
  check_refused([] { GradScaler scaler({.init_scale = 1e39}); }, "init_scale is 1e+39; it must be above 0");
  check_refused([] { GradScaler scaler({.growth_factor = 1}); }, "growth_factor is 1; it must be above 1");
  check_refused([] { GradScaler scaler({.backoff_factor = 1}); }, "backoff_factor is 1; it must be above 0 and below");
  check_refused([] { GradScaler scaler({.growth_interval = 0}); }, "growth_interval is 0; it must be 1 or more");
}

TEST_CASE("calls in another order than scale, unscale_, step, update are refused, and say what to do") {
  const auto parameters = make_parameters({{3}});
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 8});
  CHECK(scaler.get_scale() == 8);
  for (const std::function<void()>& call :
       std::vector<std::function<void()>>{[&] { scaler.unscale_(optimizer); }, [&] { scaler.step(optimizer); },
                                          [&] { scaler.update(); }, [&] { scaler.update(2.0); }}) {
    check_refused(call, " was called before scale(); call backward() on scale(loss)");
  }
  check_refused([&] { scaler.scale({}); }, "scale() got an undefined tensor");
  scaler.scale(parameters[0].sum()).backward();
  check_refused([&] { scaler.update(); }, "no inf checks were recorded; call step() on the optimizers first");
  scaler.unscale_(optimizer);
  CHECK(at::equal(parameters[0].grad(), at::ones({3})));
  check_refused([&] { scaler.unscale_(optimizer); },
                "unscale_() has already been called on this optimizer since the last update()");
  CHECK(scaler.step(optimizer));
  check_refused([&] { scaler.unscale_(optimizer); }, "unscale_() was called after step() on this optimizer");
  check_refused([&] { scaler.step(optimizer); }, "step() has already been called on this optimizer since the last");
  CHECK(at::equal(parameters[0].grad(), at::ones({3})));
  check_refused([&] { scaler.update(-1.0); }, "the scale for update() is -1; it must be above 0 and finite");
  scaler.update();
  scaler.unscale_(optimizer);
  scaler.update(3.0);
  CHECK(scaler.get_scale() == 3);
  parameters[0].mutable_grad() = at::Tensor();
  check_refused([&] { scaler.step(optimizer); }, "step(): no inf checks were recorded for this optimizer, since none");
  check_refused([&] { scaler.update(); }, "no inf checks were recorded");
}

TEST_CASE("gradients of float16 are refused, and no gradient has changed") {
  auto parameters = make_parameters({{3}, {2}});
  parameters[1] = at::ones({2}, at::kHalf).set_requires_grad(true);
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 8});
  scaler.scale(parameters[0].sum() + parameters[1].sum().to(at::kFloat)).backward();
  check_refused([&] { scaler.step(optimizer); },
                "the gradient of parameter 1 [2] of parameter group 0 is of type float16");
  CHECK(at::equal(parameters[0].grad(), at::full({3}, 8.0F)));
}

TEST_CASE("types may be mixed, and parameters without gradient or elements are skipped") {
  auto parameters = make_parameters({{3}, {2}, {2}, {4}, {0}});
  parameters[1] = at::ones({2}, at::kDouble).set_requires_grad(true);
  parameters[2] = at::ones({2}, at::kBFloat16).set_requires_grad(true);
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 4});
  for (const bool is_finite : {true, false}) {
    scaler.scale(at::ones({}));
    for (const std::size_t i : {0U, 1U, 2U, 4U}) {
      parameters[i].mutable_grad() = at::full_like(parameters[i].detach(), 8);
    }
    if (!is_finite) parameters[2].mutable_grad()[1] = std::nan("");
    scaler.unscale_(optimizer);
    CHECK(at::equal(parameters[0].grad(), at::full({3}, is_finite ? 2.0F : 4.0F)));
    CHECK(at::equal(parameters[1].grad(), at::full({2}, is_finite ? 2.0 : 4.0, at::kDouble)));
    CHECK_FALSE(parameters[3].grad().defined());
    CHECK(scaler.step(optimizer) == is_finite);
    scaler.update(2.0);
  }
}

TEST_CASE("sparse gradients are unscaled where they are, and an infinite row is found") {
  const auto parameters = make_parameters({{5, 2}});
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 4});
  scaler.scale(at::ones({}));
  const at::Tensor rows = at::tensor({1, 3, 1}, at::kLong).unsqueeze(0);
  const auto gradient_of = [&](float last) {
    return at::sparse_coo_tensor(rows, at::tensor({4.0F, -4.0F, 8.0F, 8.0F, 4.0F, last}).view({3, 2}), {5, 2});
  };
  parameters[0].mutable_grad() = gradient_of(0);
  scaler.unscale_(optimizer);
  CHECK(parameters[0].grad().is_sparse());
  CHECK(at::equal(parameters[0].grad().to_dense()[1], at::tensor({2.0F, -1.0F})));
  CHECK(scaler.step(optimizer));
  scaler.update();
  parameters[0].mutable_grad() = gradient_of(kInfinity);
  CHECK_FALSE(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("a scaler that is not enabled changes nothing, and makes each step") {
  const auto parameters = make_parameters({{3}});
  SGD optimizer(parameters, SGDOptions(1));
  GradScaler scaler({.init_scale = 8, .enabled = false});
  CHECK_FALSE(scaler.is_enabled());
  CHECK(scaler.get_scale() == 1);
  const at::Tensor loss = parameters[0].sum(), before = parameters[0].detach().clone();
  CHECK(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(optimizer);
  CHECK(scaler.step(optimizer));
  CHECK(at::equal(parameters[0].detach(), before - 1));
  scaler.update();
  scaler.update(4.0);
  // Its state passes through it.
  GradScaler other({.init_scale = 2});
  scaler.load_state(other.state());
  CHECK(scaler.state().scale == 2);
}

TEST_CASE("a state is that of an equal scaler, and others are refused and change nothing") {
  const auto parameters = make_parameters({{3}});
  SGD optimizer(parameters, SGDOptions(0.1));
  GradScaler scaler({.init_scale = 8, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 4});
  for (const bool is_infinite : {true, false, false}) step_with(scaler, optimizer, parameters, is_infinite);
  for (const bool is_in_use : {false, true}) {
    GradScaler other;
    if (is_in_use) other.scale(at::ones({}));
    auto stream = archive_of(scaler);
    load_archive(other, stream);
    const GradScalerState state = other.state();
    CHECK(state.scale == 2);
    CHECK(other.get_scale() == 2);
    CHECK(state.growth_factor == 3);
    CHECK(state.backoff_factor == 0.25);
    CHECK(state.growth_interval == 4);
    CHECK(state.growth_tracker == 2);
    for (int i = 0; i < 2; ++i) CHECK(step_with(other, optimizer, parameters, false));
    CHECK(other.get_scale() == 6);
  }
  GradScalerState wrong = scaler.state();
  wrong.growth_tracker = -1;
  check_refused([&] { scaler.load_state(wrong); }, "growth_tracker is -1; it must be a number of updates");
  wrong = {};
  check_refused([&] { scaler.load_state(wrong); }, "init_scale is 0");
  std::stringstream stream;
  torch::save(at::ones({2}), stream);
  check_refused([&] { load_archive(scaler, stream); },
                "the archive does not hold a GradScaler: it has no number scale");
  CHECK(scaler.state().scale == 2);
  CHECK(scaler.state().growth_tracker == 2);
}

TEST_CASE("ranks that agree over a group make the same steps if one of them has an infinite gradient") {
  as_group(3, [](const ProcessGroup& group) {
    const auto parameters = make_parameters(kShapes);
    SGD optimizer(parameters, SGDOptions(0.1));
    GradScaler alone({.growth_interval = 100}), agreed(group, {.growth_interval = 100});
    int steps_alone = 0, steps_agreed = 0;
    for (int step = 0; step < 6; ++step) {
      const bool is_infinite = step == group.rank() || (step == 4 && group.rank() != 0);
      steps_alone += step_with(alone, optimizer, parameters, is_infinite) ? 1 : 0;
      steps_agreed += step_with(agreed, optimizer, parameters, is_infinite) ? 1 : 0;
    }
    CHECK(steps_alone == (group.rank() == 0 ? 5 : 4));
    CHECK(steps_agreed == 2);
    CHECK(agreed.get_scale() == 65536.0 / 16);
  });
}

TEST_CASE("a rank without gradients agrees too, and it is an error on all ranks if none has any") {
  as_group(2, [](const ProcessGroup& group) {
    const auto parameters = make_parameters({{3}});
    SGD optimizer(parameters, SGDOptions(0.1));
    GradScaler scaler(group, {.init_scale = 8});
    for (const bool is_infinite : {false, true}) {
      scaler.scale(at::ones({}));
      if (group.rank() == 1) parameters[0].mutable_grad() = at::full({3}, is_infinite ? kInfinity : 1.0F);
      CHECK(scaler.step(optimizer) == !is_infinite);
      scaler.update();
    }
    CHECK(scaler.get_scale() == 4);
    optimizer.zero_grad();
    check_refused([&] { scaler.step(optimizer); }, "no inf checks were recorded for this optimizer");
    group.barrier();
  });
}

TEST_CASE("ranks of a sharded optimizer, and of one that averages, agree by themselves") {
  as_group(2, [](const ProcessGroup& group) {
    const auto sharded = make_parameters(kShapes), averaged = make_parameters(kShapes);
    ZeroRedundancyOptimizer<torch::optim::Adam> zero(sharded, group, torch::optim::AdamOptions(0.01));
    PostLocalSgdOptimizer post_local(SGD(averaged, SGDOptions(0.01)), PeriodicModelAverager(group, {.period = 2}));
    GradScaler scaler({.init_scale = 8}), other({.init_scale = 8});
    for (int step = 0; step < 5; ++step) {
      const bool is_infinite = step == 1 + group.rank();
      const bool is_skipped = step == 1 || step == 2;
      CHECK(step_with(scaler, zero, sharded, is_infinite) != is_skipped);
      CHECK(step_with(other, post_local, averaged, is_infinite) != is_skipped);
    }
    CHECK(scaler.get_scale() == 2);
    CHECK(other.get_scale() == 2);
    CHECK(post_local.averager().step() == 3);
    const auto all = group.all_gather(at::cat({sharded[0].detach().flatten(), sharded[1].detach()}));
    CHECK(at::equal(all[0], all[1]));
  });
}

TEST_CASE("in float16 a rank's overflow halves the scale of all ranks, and small gradients do not vanish") {
  as_group(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(4, 2);
    for (const at::Tensor& parameter : model->parameters()) parameter.detach().fill_(0.5);
    DistributedDataParallel ddp(model, group, {.mixed_precision = {.param_dtype = at::kHalf}});
    SGD optimizer(ddp.parameters(), SGDOptions(0.1));
    GradScaler scaler({.init_scale = 1024});
    const auto step = [&](double loss_factor) {
      optimizer.zero_grad();
      const at::Tensor loss = ddp(at::ones({3, 4})).to(at::kFloat).sum() * loss_factor;
      scaler.scale(loss).backward();
      return scaler.step(optimizer);
    };
    CHECK_FALSE(step(group.rank() == 1 ? 100 : 1));  // 1024 * 100 is more than float16 holds
    scaler.update();
    CHECK(scaler.get_scale() == 512);
    CHECK(at::equal(model->weight.detach(), at::full({2, 4}, 0.5F)));
    CHECK(step(1e-8));
    scaler.update();
    CHECK(at::allclose(model->weight.grad(), at::full({2, 4}, 3e-8F), 0.02, 0));
    optimizer.zero_grad();
    ddp(at::ones({3, 4})).to(at::kFloat).sum().mul(1e-8).backward();
    CHECK(at::equal(model->weight.grad(), at::zeros({2, 4})));  // without a scaler
  });
}

}  // namespace grad_scaler_test
