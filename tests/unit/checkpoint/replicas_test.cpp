// What ranks are to hold alike is compared before a set appears, and no set is made of values of different ranks.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace replicas_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

// Two parts of 8 MiB, so that two ranks write.
Sequential large_model() { return Sequential(Linear(1024, 1024), Linear(1024, 1024), Linear(1024, 1024)); }

void fill(const torch::nn::Module& module, double value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) parameter.fill_(value);
}

// All values of a module's parameters.
std::set<float> values_of(const torch::nn::Module& module) {
  std::set<float> values;
  for (const at::Tensor& parameter : module.parameters()) {
    values.insert({parameter.min().item<float>(), parameter.max().item<float>()});
  }
  return values;
}

std::set<float> loaded_values(const std::filesystem::path& folder) {
  Sequential model = large_model();
  load(folder, {.model = model});
  return values_of(*model);
}

}  // namespace

TEST_CASE("a plain module whose ranks differ is not saved") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Sequential model = large_model();
    fill(*model, 1 + world.rank());
    CHECK_ERROR(error_of([&] { save(folder.path(), {.model = model}, world); }), ErrorKind::desync, "'model.0.bias'",
                "rank 0 has other values than rank 1");
    world.barrier();
    CHECK(std::filesystem::is_empty(folder.path()));
  });
}

TEST_CASE("a wrapped model whose ranks may differ is saved with the values of rank 0") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel ddp(large_model(), world, {.compare_parameters_every = 0});
    fill(*ddp.module(), 1 + world.rank());
    save(folder.path(), {.model = ddp}, world);
  });
  CHECK(loaded_values(folder.path()) == std::set<float>{1});
  CHECK(SetReader(set_path(folder.path(), 0)).manifest().metadata.at("replicas") == "rank_0");
}

TEST_CASE("ranks that are told to compare do so, whatever their wrapper says, and ranks that are told not to do not") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel free(large_model(), world, {.compare_parameters_every = 0});
    DistributedDataParallel ddp(large_model(), world);
    for (const auto* model : {&*free.module(), &*ddp.module()}) fill(*model, 1 + world.rank());
    const SaveOptions refuse{.if_ranks_differ = IfRanksDiffer::refuse},
        rank_0{.if_ranks_differ = IfRanksDiffer::rank_0};
    CHECK_ERROR(error_of([&] { save(folder.path(), {.model = free}, world, refuse); }), ErrorKind::desync,
                "'model.0.bias'");
    save(folder.path(), {.model = ddp, .step = 1}, world, rank_0);
    fill(*free.module(), 1);
    save(folder.path(), {.model = free, .step = 2}, world, refuse);
    fill(*free.module(), 2 + world.rank());
    AsyncSaver saver(folder.path(), world, {.copy_in_background = true});
    saver.save({.model = free, .step = 3});
    CHECK(saver.wait() == set_path(folder.path(), 3));
  });
  CHECK(loaded_values(set_path(folder.path(), 1)) == std::set<float>{1});
  CHECK(loaded_values(set_path(folder.path(), 2)) == std::set<float>{1});
  CHECK(loaded_values(set_path(folder.path(), 3)) == std::set<float>{2});
  // Those that are equal are written by all.
  CHECK(SetReader(set_path(folder.path(), 1)).manifest().files.size() == 2);  // random numbers of each rank
  CHECK_FALSE(SetReader(set_path(folder.path(), 2)).manifest().metadata.contains("replicas"));
}

TEST_CASE("tensors that only some ranks have, and metadata that differs, are named") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    const bool is_other = world.rank() == 1;
    Linear model(2, 2), larger(2, 3);
    for (const auto* each : {&*model, &*larger}) fill(*each, 1);
    torch::optim::SGD one(model->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD two({model->weight, model->weight.detach().clone()}, torch::optim::SGDOptions(0.1));
    torch::optim::SGD& optimizer = is_other ? two : one;
    CHECK_ERROR(error_of([&] { save(folder.path(), {.model = is_other ? larger : model}, world); }),
                ErrorKind::invalid_argument,
                R"(rank 0 has ["model.bias","F32",[2]], rank 1 has ["model.bias","F32",[3]])");
    optimizer.param_groups().push_back(torch::optim::OptimizerParamGroup(
        {at::ones({1})}, std::make_unique<torch::optim::SGDOptions>(is_other ? 0.2 : 0.1)));
    if (is_other) optimizer.param_groups()[0].params().pop_back();
    optimizer.param_groups()[is_other ? 1 : 0].params().push_back(at::ones({1}));
    CHECK_ERROR(error_of([&] { save(folder.path(), {.model = model, .optimizer = optimizer}, world); }),
                ErrorKind::invalid_argument, R"(rank 0 has ["optimizer.groups","[3, 1]"], rank 1 has)");
    // As of an optimizer that runs on rank 0 alone: what it remembers is there only.
    const SaveOptions rank_0{.if_ranks_differ = IfRanksDiffer::rank_0};
    save(folder.path(), {.model = is_other ? larger : model, .step = 1}, world, rank_0);
    Linear loaded(2, 2);
    load(folder.path(), {.model = loaded}, world);
    CHECK(at::equal(loaded->weight, model->weight));
  });
}

TEST_CASE("buffers and ignored parameters are those of rank 0, and so is what an optimizer remembers of the latter") {
  const TemporaryDirectory folder;
  const auto make = [] { return Sequential(Linear(3, 3), torch::nn::BatchNorm1d(3), Linear(3, 2)); };
  run_worlds_or_throw(2, [&](const World& world) {
    DistributedDataParallel ddp(make(), world, {.ignored = {"2.weight", "2.bias"}});
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : ddp.module()->named_parameters()) {
        if (item.key().starts_with("2.")) item.value().fill_(1 + world.rank());
      }
    }
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    ddp(at::rand({8, 3}) * (1 + world.rank())).pow(2).sum().backward();
    optimizer.step();
    save(folder.path(), {.model = ddp, .optimizer = optimizer}, world);
    if (world.rank() != 0) return;
    Sequential model = make();
    torch::optim::SGD loaded(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    load(folder.path(), {.model = model, .optimizer = loaded});
    CHECK(sha256_of(*model, loaded) == sha256_of(*ddp.module(), optimizer));
  });
}

// fault: 36
TEST_CASE("an optimizer whose state differs on one rank is not saved") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(3, [&](const World& world) {
    DistributedDataParallel ddp(Sequential(Linear(3, 2)), world);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    ddp(at::ones({2, 3})).sum().backward();
    optimizer.step();
    const State state{.model = ddp, .optimizer = optimizer};
    save(folder.path(), state, world);
    for (const auto& [parameter, of_it] : optimizer.state()) {
      auto& momentum = dynamic_cast<torch::optim::SGDParamState&>(*of_it);
      if (world.rank() == 2) momentum.momentum_buffer().view(-1)[0] += 1;
    }
    CHECK_ERROR(error_of([&] { save(folder.path(), state, world); }), ErrorKind::desync,
                "'optimizer.0.momentum_buffer'", "rank 0 has other values than rank 2");
    AsyncSaver saver(folder / "async", world);
    saver.save(state);
    CHECK_ERROR(error_of([&] { saver.wait(); }), ErrorKind::desync, "'optimizer.0.momentum_buffer'");
  });
  CHECK(list_sets(folder.path()).size() == 1);
}

TEST_CASE("an LBFGS whose closures return each rank's own loss is saved, with the loss of rank 0") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Linear model(2, 2);
    fill(*model, 1);
    torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(2));
    optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor loss = model->weight.pow(2).sum() + model->bias.pow(2).sum() + world.rank();
      loss.backward();
      return loss;
    });
    const State state{.model = model, .optimizer = optimizer};
    save(folder.path(), state, world);
    const std::string digest = sha256_of(*model, optimizer);
    load(folder.path(), state, world);
    CHECK((sha256_of(*model, optimizer) == digest) == (world.rank() == 0));
  });
}

}  // namespace replicas_test
