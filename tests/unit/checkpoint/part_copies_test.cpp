// What AsyncSaver copies in the background, and what it notices of changes that come too early.
#include "lockstep/train/checkpoint/part_copies.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_writing.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace part_copies_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using torch::nn::Linear;
using Which = PartCopies::Which;
using Parameters = std::vector<at::Tensor>;

void step(Linear& model, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  model(at::linspace(-1, 1, 4 * 50).view({4, 50})).pow(2).mean().backward();
  optimizer.step();
}

const SaveJob::Part& part_of(const SaveJob& job, const std::string& name) {
  const auto found = std::ranges::find(job.parts, name, &SaveJob::Part::name);
  REQUIRE(found != job.parts.end());
  return *found;
}

// One that `make` gives steps once before the save and once before its copy.
void check_step_is_noticed(const std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>& make) {
  const TemporaryDirectory folder;
  Linear model(50, 40);
  const auto optimizer = make(model->parameters());
  step(model, *optimizer);
  const State state{.model = model, .optimizer = *optimizer};
  PartCopies copies;
  SaveJob early = plan_save_alone(folder.path(), state, {});
  copies.take(early, Which::all_but_stepped);
  CHECK_FALSE(part_of(early, "model.weight").is_copied);
  CHECK(part_of(early, "random.cpu").is_copied);
  step(model, *optimizer);
  CHECK_ERROR(error_of([&] { copies.take(early, Which::all); }), ErrorKind::invalid_argument, "was changed",
              "wait_for_copy()");
  // And what does not change is copied, with the same memory.
  SaveJob fine = plan_save_alone(folder.path(), state, {});
  copies.take(fine, Which::all_but_stepped);
  copies.take(fine, Which::all);
  CHECK(at::equal(part_of(fine, "model.weight").tensor, model->weight));
  CHECK(part_of(fine, "model.weight").tensor.data_ptr() != model->weight.data_ptr());
  step(model, *optimizer);
  run_save_alone(fine);
  CHECK(list_sets(folder.path()).size() == 1);
}

// Names the tensor that `change` changes between plan and copy.
void check_change_is_noticed(const std::function<void(Linear&)>& change, const std::string& name) {
  const TemporaryDirectory folder;
  Linear model(50, 40);
  SaveJob job = plan_save_alone(folder.path(), {.model = model}, {});
  PartCopies copies;
  copies.take(job, Which::all_but_stepped);
  change(model);
  CHECK_ERROR(error_of([&] { copies.take(job, Which::all); }), ErrorKind::invalid_argument,
              "'" + name + "' was changed");
}

}  // namespace

TEST_CASE("a step before wait_for_copy() is noticed, with every kind of optimizer") {
  using namespace torch::optim;
  check_step_is_noticed([](const Parameters& all) { return std::make_unique<SGD>(all, SGDOptions(0.01)); });
  check_step_is_noticed(
      [](const Parameters& all) { return std::make_unique<SGD>(all, SGDOptions(0.01).momentum(0.9)); });
  check_step_is_noticed([](const Parameters& all) { return std::make_unique<Adam>(all, AdamOptions(0.01)); });
  check_step_is_noticed([](const Parameters& all) { return std::make_unique<AdamW>(all, AdamWOptions(0.01)); });
  check_step_is_noticed([](const Parameters& all) { return std::make_unique<RMSprop>(all, RMSpropOptions(0.01)); });
  check_step_is_noticed([](const Parameters& all) { return std::make_unique<Adagrad>(all, AdagradOptions(0.01)); });
}

TEST_CASE("what writes through data() is noticed, and so is one element that is sampled") {
  check_change_is_noticed([](Linear& model) { model->weight.data().add_(1); }, "model.weight");
  check_change_is_noticed([](Linear& model) { model->bias.data().mul_(1.5); }, "model.bias");
  check_change_is_noticed([](Linear& model) { model->weight.data()[0][0] = 7; }, "model.weight");
  check_change_is_noticed([](Linear& model) { model->weight.data()[39][49] = 7; }, "model.weight");
  // By PyTorch's count one element is enough, wherever it is.
  check_change_is_noticed(
      [](Linear& model) {
        const at::NoGradGuard no_grad;
        model->weight[20][1].fill_(7);
      },
      "model.weight");
}

TEST_CASE("a parameter in the order of channels_last is copied in the background, and one of other strides") {
  const TemporaryDirectory folder;
  torch::nn::Conv2d conv(3, 8, 3);
  conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor before = conv->weight.detach().clone();
  SaveJob job = plan_save_alone(folder.path(), {.model = conv}, {});
  PartCopies copies;
  copies.take(job, Which::all_but_stepped);
  CHECK_FALSE(part_of(job, "model.weight").is_copied);
  copies.take(job, Which::all);
  CHECK(at::equal(part_of(job, "model.weight").tensor, before));

  Linear model(50, 40);
  model->weight.set_data(at::rand({50, 40}).t());
  job = plan_save_alone(folder.path(), {.model = model}, {});
  copies.take(job, Which::all_but_stepped);
  model->weight.data()[39][49] = 7;
  CHECK_ERROR(error_of([&] { copies.take(job, Which::all); }), ErrorKind::invalid_argument, "'model.weight'");
}

TEST_CASE("copies that were made in inference mode serve later saves, too") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(1, [&](const World& world) {
    Linear model(50, 40);
    State state{.model = model, .step = 1};
    AsyncSaver saver(folder.path(), world);
    {
      const c10::InferenceMode inference;
      saver.save(state);
      saver.wait();
    }
    state.step = 2;
    saver.save(state);
    saver.wait();
    CHECK(list_sets(folder.path()).size() == 2);
  });
}

}  // namespace part_copies_test
