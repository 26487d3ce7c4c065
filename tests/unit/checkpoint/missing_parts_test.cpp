// load() of sets whose optimizer has other groups, and of sets that lack a part of the State.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace missing_parts_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;
using Zero = ZeroRedundancyOptimizer<Adam>;
using Sizes = std::vector<std::size_t>;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return c->forward(b->forward(a->forward(x))); }

  torch::nn::Linear a = register_module("a", torch::nn::Linear(3, 3));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(3, 3));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(3, 3));
};

// A rank of a training whose optimizer has the 6 parameters in groups of these sizes.
template <class Optimizer>
struct Trainer {
  Trainer(const ProcessGroup& group, const Sizes& sizes) : ddp(std::make_shared<Net>(), group) {
    std::vector<OptimizerParamGroup> groups;
    const std::vector<at::Tensor> all = ddp.parameters();
    REQUIRE(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) == all.size());
    auto next = all.begin();
    for (const std::size_t size : sizes) {
      const auto first = next;
      next += static_cast<std::ptrdiff_t>(size);
      groups.emplace_back(std::vector(first, next),
                          std::make_unique<AdamOptions>(1e-3 * static_cast<double>(groups.size() + 1)));
    }
    if constexpr (std::is_same_v<Optimizer, Zero>) {
      optimizer = std::make_unique<Zero>(groups, group, AdamOptions());
    } else {
      optimizer = std::make_unique<Adam>(groups, AdamOptions());
    }
  }

  void step() {
    optimizer->zero_grad();
    ddp(at::ones({2, 3})).square().sum().backward();
    optimizer->step();
  }
  State state() { return {.model = ddp, .optimizer = *optimizer}; }
  // On this rank.
  std::string digest() {
    Checkpoint mine;
    for (const auto& [name, tensor] : ddp.state_dict()) mine.tensors.emplace("model." + name, tensor);
    if constexpr (std::is_same_v<Optimizer, Zero>) {
      optimizer->add_part(mine);
    } else {
      add_optimizer(mine, *optimizer);
    }
    return sha256_of(mine);
  }

  DistributedDataParallel<std::shared_ptr<Net>> ddp;
  std::unique_ptr<Optimizer> optimizer;
};

// Takes something out of the metadata of a set, as if an older version had written it.
void forget(const std::filesystem::path& set, const std::string& name) {
  Manifest manifest = SetReader(set).manifest();
  REQUIRE(manifest.metadata.erase(name) == 1);
  std::ofstream(set / kManifestName) << serialise(manifest);
}

// The error of this call is the same on all ranks, and is nobody's in particular.
template <class Call>
Error common_error_of(const World& world, Call&& call) {
  const Error error = error_of(call);
  const std::string text = error.what();
  const auto all = world.all_gather_object(text);
  CHECK(all == std::vector(all.size(), text));
  CHECK(text.find("rank") == std::string::npos);
  return error;
}

template <class Optimizer>
void check_other_groups_are_refused() {
  const TemporaryDirectory folder;
  run_worlds_or_throw(3, [&](const World& world) {
    Trainer<Optimizer> saved(world, {2, 4});
    saved.step();
    save(folder.path(), saved.state(), world);
    const std::vector<std::pair<Sizes, std::string>> others = {
        {{3, 3}, "[3, 3]"}, {{6}, "[6]"}, {{2, 2, 2}, "[2, 2, 2]"}};
    for (const auto& [sizes, shown] : others) {
      CAPTURE(shown);
      Trainer<Optimizer> other(world, sizes);
      other.step();
      const std::string before = other.digest();
      CHECK_ERROR(common_error_of(world, [&] { load(folder.path(), other.state(), world); }),
                  ErrorKind::invalid_argument, "groups are [2, 4] in the checkpoint, " + shown + " in the optimizer",
                  "create the optimizer with the saved groups");
      CHECK(other.digest() == before);
      load(folder.path(), {.model = other.ddp}, world);  // without the optimizer
    }
    Trainer<Optimizer> same(world, {2, 4});
    load(folder.path(), same.state(), world);
    CHECK(same.digest() == saved.digest());
    world.barrier();
    if (world.rank() == 0) forget(set_path(folder.path(), 0), "optimizer.groups");
    world.barrier();
    Trainer<Optimizer> trusting(world, {3, 3});
    CHECK(load(folder.path(), trusting.state(), world).world_size == 3);
  });
}

}  // namespace

TEST_CASE("an optimizer with other groups of parameters is refused on all ranks, and nothing has changed") {
  check_other_groups_are_refused<Adam>();
  check_other_groups_are_refused<Zero>();
}

TEST_CASE("a plain and a sharded optimizer store the sizes of groups alike") {
  const TemporaryDirectory folder, other;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<Zero> sharded(world, {1, 5});
    Trainer<Adam> plain(world, {1, 5}), plain_of_others(world, {5, 1});
    Trainer<Zero> sharded_of_others(world, {5, 1});
    save(folder.path(), sharded.state(), world);
    load(folder.path(), plain.state(), world);
    save(other.path(), plain.state(), world);
    load(other.path(), sharded.state(), world);
    const std::string text = "groups are [1, 5] in the checkpoint, [5, 1] in the optimizer";
    CHECK_ERROR(common_error_of(world, [&] { load(folder.path(), plain_of_others.state(), world); }),
                ErrorKind::invalid_argument, text);
    CHECK_ERROR(common_error_of(world, [&] { load(other.path(), sharded_of_others.state(), world); }),
                ErrorKind::invalid_argument, text);
  });
}

TEST_CASE("a checkpoint without user values is refused where the State has some, and nothing has changed") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<Adam> trainer(world, {6});
    save(folder.path(), trainer.state(), world);
    trainer.step();
    const std::string before = trainer.digest();
    nlohmann::json user = {{"tokens", 7}};
    State state = trainer.state();
    state.user = user;
    const auto refused = [&](const auto& call) {
      CHECK_ERROR(common_error_of(world, call), ErrorKind::invalid_argument, "the checkpoint has no user values",
                  "leave it out of the State, or load another");
      CHECK(user == nlohmann::json{{"tokens", 7}});
      CHECK(trainer.digest() == before);
    };
    refused([&] { load(folder.path(), state, world); });
    refused([&] { load_if_any(folder.path(), state, world); });
    load(folder.path(), trainer.state(), world);
  });
}

TEST_CASE("null is a user value too, and what a set of an older version may have") {
  const TemporaryDirectory folder;
  torch::nn::Linear model(2, 2);
  nlohmann::json none, user = 7;
  save(folder.path(), {.model = model, .user = none});
  load(folder.path(), {.model = model, .user = user});
  CHECK(user == nullptr);
  save(folder.path(), {.model = model, .step = 1});
  forget(set_path(folder.path(), 1), "user");
  user = 7;
  load(folder.path(), {.model = model, .user = user});
  CHECK(user == nullptr);
}

}  // namespace missing_parts_test
