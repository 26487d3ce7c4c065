// save(), load() and AsyncSaver: whole trainings, at any number of ranks.
#include "lockstep/train/checkpoint/save.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/pipe.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/one_writer.h"
#include "lockstep/train/checkpoint/part_copies.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/set_writing.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/optim/grad_scaler.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wave.h"

namespace save_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using torch::nn::Linear;
using torch::nn::Sequential;
using torch::optim::Adam;
using Zero = ZeroRedundancyOptimizer<Adam>;

// Large enough that several ranks write a part of it.
Sequential make_model() { return Sequential(Linear(1100, 1000), torch::nn::BatchNorm1d(1000), Linear(1000, 1100)); }

template <class Optimizer>
std::unique_ptr<Optimizer> make_optimizer(DdpBase& ddp) {
  if constexpr (std::is_same_v<Optimizer, Zero>) {
    return std::make_unique<Zero>(ddp.parameters(), ddp.group(), torch::optim::AdamOptions(1e-3));
  } else {
    return std::make_unique<Adam>(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  }
}

// A rank of a training.
template <class Optimizer = Adam>
struct Trainer {
  explicit Trainer(const ProcessGroup& group) : ddp(make_model(), group) {}

  // With inputs that do not depend on the number of ranks.
  void step() {
    optimizer->zero_grad();
    ddp(at::linspace(-1, 1, 8 * 1100).view({8, 1100}) * (++steps)).pow(2).mean().backward();
    optimizer->step();
  }
  State state() { return {.model = ddp, .optimizer = *optimizer, .step = steps, .epoch = 7}; }
  // Of the model and of all of the optimizer's state, on every rank.
  std::string digest() {
    if constexpr (std::is_same_v<Optimizer, Zero>) {
      Checkpoint all;
      for (int rank = 0; rank < ddp.group().size(); ++rank) {
        optimizer->consolidate_state_dict(rank);
        if (rank == ddp.group().rank()) all = optimizer->state_dict();
      }
      for (const auto& [name, tensor] : ddp.state_dict()) all.tensors.emplace("model." + name, tensor);
      return sha256_of(all);
    } else {
      return sha256_of(*ddp.module(), *optimizer);
    }
  }

  DistributedDataParallel<Sequential> ddp;
  std::unique_ptr<Optimizer> optimizer = make_optimizer<Optimizer>(ddp);
  std::int64_t steps = 0;
};

std::size_t count_files(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) count += entry.is_regular_file();
  return count;
}

void flip_a_bit(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-9, std::ios::end);
  const int byte = stream.get();
  stream.seekp(-9, std::ios::end);
  stream.put(static_cast<char>(byte ^ 4));
}

}  // namespace

// feature: H-01
TEST_CASE_TEMPLATE("what 4 ranks save, any number of ranks loads, and goes on from there", Optimizer, Adam, Zero) {
  const TemporaryDirectory folder;
  std::string saved, continued;
  run_worlds_or_throw(4, [&](const World& world) {
    Trainer<Optimizer> trainer(world);
    for (int i = 0; i < 3; ++i) trainer.step();
    const std::filesystem::path path = save(folder.path(), trainer.state(), world);
    CHECK(path == set_path(folder.path(), 3));
    const std::string digest = trainer.digest();
    trainer.step();
    const std::string later = trainer.digest();
    if (world.rank() == 0) {
      saved = digest;
      continued = later;
    }
  });
  CHECK(count_files(folder.path()) == 5);
  SetReader(set_path(folder.path(), 3)).verify();
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    run_worlds_or_throw(ranks, [&](const World& world) {
      Trainer<Optimizer> trainer(world);
      const Loaded loaded = load(folder.path(), trainer.state(), world);
      CHECK(loaded.step == 3);
      CHECK(loaded.epoch == 7);
      CHECK(loaded.world_size == 4);
      CHECK(trainer.digest() == saved);
      trainer.steps = loaded.step;
      trainer.step();
      const std::string digest = trainer.digest();
      if (ranks == 4) CHECK(digest == continued);
    });
  }
}

TEST_CASE("in lockstep mode a training goes on with the same bits at any number of ranks") {
  const TemporaryDirectory folder;
  const auto train = [](auto& ddp, Adam& optimizer, int steps) {
    for (int i = 0; i < steps; ++i) {
      ddp.for_each_shard([&](const Shard& shard) {
        // With dropout, so that random numbers count.
        const at::Tensor x = at::dropout(wave({4, 20}, static_cast<double>(shard.step * 100 + shard.index)), 0.3, true);
        const at::Tensor loss = ddp(x).square().mean();
        loss.backward();
        return loss.template item<double>();
      });
      optimizer.step();
    }
  };
  std::string expected;
  const auto run = [&](const World& world, bool is_first) {
    torch::manual_seed(1);
    DistributedDataParallel ddp(Linear(20, 30), world, {.lockstep = {.shards = 8, .seed = 7}});
    Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
    State state{.model = ddp, .optimizer = optimizer};
    if (is_first) {
      train(ddp, optimizer, 3);
      save(folder.path(), state, world);
    } else {
      load(folder.path(), state, world);
    }
    train(ddp, optimizer, 2);
    const std::string digest = sha256_of(*ddp.module(), optimizer);
    if (is_first && world.rank() == 0) expected = digest;
    if (!is_first) CHECK(digest == expected);
  };
  run_worlds_or_throw(4, [&](const World& world) { run(world, true); });
  for (const int ranks : {1, 2, 4, 8}) {
    CAPTURE(ranks);
    run_worlds_or_throw(ranks, [&](const World& world) { run(world, false); });
  }
}

TEST_CASE("a plain optimizer loads what a sharded one has saved, and the other way round") {
  const TemporaryDirectory folder;
  std::string digest;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<Zero> trainer(world);
    trainer.step();
    save(folder.path(), trainer.state(), world);
    Trainer<Adam> plain(world);
    load(folder.path(), plain.state(), world);
    plain.steps = 2;
    save(folder.path(), plain.state(), world);
    Trainer<Zero> again(world);
    CHECK(load(folder.path(), again.state(), world).step == 2);
    CHECK(again.digest() == trainer.digest());
  });
}

TEST_CASE("sampler, hook, random numbers and the program's own values come back") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    PowerSgd power_sgd({.start_power_sgd_iter = 2});
    trainer.ddp.register_comm_hook(power_sgd.hook());
    for (int i = 0; i < 4; ++i) trainer.step();
    DistributedSampler sampler(100, world);
    sampler.set_epoch(3);
    sampler.reset();
    sampler.next(10);
    nlohmann::json user = {{"name", "a run"}, {"list", {1, 2.5, nullptr}}};
    State state = trainer.state();
    state.sampler = sampler;
    state.hook = power_sgd;
    state.user = user;
    save(folder.path(), state, world);

    Trainer<> other(world);
    PowerSgd other_sgd({.start_power_sgd_iter = 2});
    other.ddp.register_comm_hook(other_sgd.hook());
    DistributedSampler other_sampler(100, world);
    nlohmann::json other_user;
    State into = other.state();
    into.sampler = other_sampler;
    into.hook = other_sgd;
    into.user = other_user;
    load(folder.path(), into, world);
    CHECK(other_user == user);
    CHECK(other_sampler.epoch() == 3);
    CHECK(other_sampler.position()->start == 10);
    const auto remembered = power_sgd.state(), restored = other_sgd.state();
    REQUIRE(!remembered.empty());
    CHECK(remembered.size() == restored.size());
    for (const auto& [name, tensor] : remembered) CHECK(at::equal(tensor, restored.at(name)));
    other.steps = 4;
    trainer.step();
    other.step();
    CHECK(trainer.digest() == other.digest());
    // What the State does not name is left alone.
    Trainer<> bare(world);
    load(folder.path(), {.model = bare.ddp}, world);
  });
}

// fault: 24
TEST_CASE("a set that is damaged is passed over by all ranks, with a warning, for the one before") {
  const TemporaryDirectory folder;
  std::string first;
  run_worlds_or_throw(3, [&](const World& world) {
    Trainer<> trainer(world);
    trainer.step();
    save(folder.path(), trainer.state(), world);
    if (world.rank() == 0) first = trainer.digest();
    trainer.step();
    save(folder.path(), trainer.state(), world);
  });
  flip_a_bit(set_path(folder.path(), 2) / "part-00001-of-00003.safetensors");
  run_worlds_or_throw(3, [&](const World& world) {
    Trainer<> trainer(world);
    CHECK(load(folder.path(), trainer.state(), world).step == 1);
    CHECK(trainer.digest() == first);
  });
  std::filesystem::remove(set_path(folder.path(), 1) / "part-00002-of-00003.safetensors");
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    const std::string before = trainer.digest();
    CHECK_ERROR(error_of([&] { load(folder.path(), trainer.state(), world); }), ErrorKind::corrupt_data,
                "every checkpoint in", "is damaged");
    CHECK(trainer.digest() == before);
  });
}

TEST_CASE("what does not fit is refused on all ranks, and changes nothing") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    CHECK(!load_if_any(folder.path() + "/none", trainer.state(), world));
    CHECK_ERROR(error_of([&] { load(folder.path(), trainer.state(), world); }), ErrorKind::invalid_argument,
                "there is no checkpoint in");
    trainer.step();
    save(folder.path(), trainer.state(), world);
    Linear small(3, 1);
    DistributedDataParallel<Linear> other(small, world);
    CHECK_ERROR(error_of([&] { load(folder.path(), {.model = other}, world); }), ErrorKind::invalid_argument,
                "does not fit the module");
    nlohmann::json user;
    DistributedSampler sampler(10, world);
    CHECK_ERROR(error_of([&] { load(folder.path(), {.sampler = sampler}, world); }), ErrorKind::invalid_argument,
                "has no sampler");
    GradScaler scaler;
    CHECK_ERROR(error_of([&] { load(folder.path(), {.scaler = scaler}, world); }), ErrorKind::invalid_argument,
                "has no scaler");
    State state = trainer.state();
    state.step = -1;
    CHECK_ERROR(error_of([&] { save(folder.path(), state, world); }), ErrorKind::invalid_argument,
                "must not be negative");
    state.step = world.rank();
    CHECK_ERROR(error_of([&] { save(folder.path(), state, world); }), ErrorKind::invalid_argument,
                "rank 0 saves step 0, rank 1 step 1");
    CHECK_ERROR(error_of([&] { save("/proc/nowhere", trainer.state(), world); }), ErrorKind::invalid_argument,
                "cannot create the directory /proc/nowhere");
    CHECK_ERROR(
        error_of([&] { save(folder.path(), trainer.state(), world, {.retention = {.keep_last = 1, .keep_best = 1}}); }),
        ErrorKind::invalid_argument, "needs a metric");
    world.barrier();  // and the world goes on
  });
}

TEST_CASE("a model whose ranks have trained apart is not saved, unless they may") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    for (const int every : {100, 0}) {
      Linear model(3, 1);
      DistributedDataParallel ddp(model, world, {.compare_parameters_every = every});
      model->forward(at::full({2, 3}, 1.0 + world.rank(), at::kFloat)).sum().backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : model->parameters()) parameter -= parameter.grad();
      const auto save_it = [&] { save(folder.path(), {.model = ddp}, world); };
      if (every == 0) {
        save_it();
      } else {
        CHECK_ERROR(error_of(save_it), ErrorKind::desync,
                    "The first difference: 'model.weight', where rank 0 has other values than rank 1");
        world.barrier();
        CHECK(std::filesystem::is_empty(folder.path()));
      }
      world.barrier();
    }
  });
}

TEST_CASE("ranks that save without the others of their wrapper's group do not wait for them") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Linear model(3, 1);
    DistributedDataParallel ddp(model, world);
    const ProcessGroup alone = *world.split(world.rank());
    if (world.rank() == 0) save(folder.path(), {.model = ddp}, alone);
    world.barrier();
    CHECK(load(folder.path(), {.model = ddp}, world).world_size == 1);
  });
}

TEST_CASE("one process saves and loads without a group") {
  const TemporaryDirectory folder;
  Sequential model = make_model(), other = make_model();
  save(folder.path(), {.model = model, .step = 5});
  CHECK(load(folder.path(), {.model = other}).step == 5);
  for (const auto& item : model->named_parameters()) {
    CHECK(at::equal(item.value(), other->named_parameters()[item.key()]));
  }
}

// feature: H-02
TEST_CASE("ranks that all save without a group write once, a later job writes again") {
  const TemporaryDirectory folder;
  // Who saves before another one has started cannot know of it.
  const Pipe started = make_pipe("a test"), go = make_pipe("a test");
  const auto save_as = [&](int rank, const char* port) {
    return exit_code_of_child([&] {
      char byte = 0;
      if (::write(started.writer.get(), "", 1) != 1 || ::read(go.reader.get(), &byte, 1) != 1) return false;
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "3", 1);
      ::setenv("MASTER_PORT", port, 1);
      save(folder.path(), {.step = 4});
      return SetReader(set_path(folder.path(), 4)).manifest().written.at("rank") == std::to_string(rank);
    });
  };
  std::vector<std::future<int>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(std::async(std::launch::async, save_as, rank, "1234"));
  std::array<char, 3> bytes{};
  for (char& byte : bytes) REQUIRE(::read(started.reader.get(), &byte, 1) == 1);
  REQUIRE(::write(go.writer.get(), "12345", 5) == 5);  // two for the jobs behind
  int writers = 0;
  for (auto& each : ranks) writers += each.get() == 0;
  CHECK(writers == 1);
  CHECK(save_as(0, "1235") == 0);
  CHECK(save_as(0, "1235") == 0);  // itself, again
}

TEST_CASE("ranks that all save a step again without a group write it again") {
  const TemporaryDirectory folder;
  const Pipe started = make_pipe("a test"), go = make_pipe("a test");
  const auto save_twice_as = [&](int rank) {
    return exit_code_of_child([&] {
      char byte = 0;
      if (::write(started.writer.get(), "", 1) != 1 || ::read(go.reader.get(), &byte, 1) != 1) return false;
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      for (int i = 0; i < 2; ++i) save(folder.path(), {.step = 4});
      const std::filesystem::path set = set_path(folder.path(), 4);
      const std::uint64_t mine = save_numbers().next(set) - 1;
      return SetReader(set).manifest().written.at("save") == std::to_string(mine) && mine >= 2;
    });
  };
  std::vector<std::future<int>> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(std::async(std::launch::async, save_twice_as, rank));
  std::array<char, 2> bytes{};
  for (char& byte : bytes) REQUIRE(::read(started.reader.get(), &byte, 1) == 1);
  REQUIRE(::write(go.writer.get(), "12", 2) == 2);
  for (auto& each : ranks) CHECK(each.get() == 0);
}

TEST_CASE("checkpoints are kept by number, by step and by metric") {
  const TemporaryDirectory folder;
  Linear model(2, 2);
  const double losses[] = {5, 1, 4, 3, 2, 6};
  for (int step = 0; step < 6; ++step) {
    save(folder.path(), {.model = model, .step = step, .metrics = {{"loss", losses[step]}}},
         {.retention = {.keep_last = 2, .keep_every = 3, .keep_best = 1, .metric = "loss"}});
  }
  std::vector<std::uint64_t> steps;
  for (const auto& each : list_sets(folder.path())) steps.push_back(each.step);
  CHECK(steps == std::vector<std::uint64_t>{5, 4, 3, 1, 0});
}

TEST_CASE("metrics that are not finite are left out with one warning, and the rest is saved") {
  const TemporaryDirectory folder;
  const CapturedLog log;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    State state = trainer.state();
    state.metrics = {{"loss", std::nan("")}, {"accuracy", 0.5}, {"norm", -INFINITY}};
    save(folder.path(), state, world);
    CHECK(load(folder.path(), trainer.state(), world).metrics == std::map<std::string, double>{{"accuracy", 0.5}});
  });
  const std::string text = log.text();
  CHECK(contains(text, "is saved without metrics that are not finite: loss (nan), norm (-inf)"));
  CHECK(text.find("not finite") == text.rfind("not finite"));
}

// fault: S9
TEST_CASE("a signed checkpoint is loaded with its token only, and one that is not signed is refused if asked for") {
  const TemporaryDirectory folder;
  const auto use_token = [&](char digit) {
    const std::string path = folder / "token";
    std::filesystem::remove(path);
    std::ofstream(path) << std::string(2 * Token::kBytes, digit) << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    ::setenv("LOCKSTEP_TOKEN_FILE", path.c_str(), 1);
  };
  use_token('1');
  const LoadOptions strict = {.require_signature = true};
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    trainer.step();
    save(folder.path(), trainer.state(), world, {.digest = DigestKind::sha_256});
    CHECK(load(folder.path(), trainer.state(), world).step == 1);
    CHECK_ERROR(error_of([&] { load(folder.path(), trainer.state(), world, strict); }), ErrorKind::unauthorized,
                "is not signed, but a signature is required");
    trainer.step();
    save(folder.path(), trainer.state(), world, {.sign = true});
    CHECK(load(folder.path(), trainer.state(), world, strict).step == 2);
    CHECK_ERROR(error_of([&] { save(folder.path(), trainer.state(), world, {.sign = world.rank() == 0}); }),
                ErrorKind::invalid_argument, "rank 0 saves digests SHA-256, rank 1 digests XXH3-128");
  });
  use_token('2');
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    const std::string before = trainer.digest();
    for (const LoadOptions& options : {LoadOptions{}, strict}) {
      CHECK_ERROR(error_of([&] { load(folder.path(), trainer.state(), world, options); }), ErrorKind::unauthorized,
                  "step-0000000002/manifest.json was signed with another token, or changed since");
    }
    CHECK(trainer.digest() == before);
  });
  ::unsetenv("LOCKSTEP_TOKEN_FILE");
}

// feature: H-03
TEST_CASE("an asynchronous save holds what was there when it was called") {
  const TemporaryDirectory folder;
  std::string second;
  run_worlds_or_throw(3, [&](const World& world) {
    Trainer<> trainer(world);
    AsyncSaver saver(folder.path(), world, {.save = {.retention = {.keep_last = 2}}});
    CHECK(!saver.wait());
    for (int i = 0; i < 3; ++i) {
      trainer.step();
      if (i == 1 && world.rank() == 0) second = trainer.digest();
      saver.save(trainer.state());
    }
    trainer.step();
    CHECK(*saver.wait() == set_path(folder.path(), 3));
  });
  CHECK(list_sets(folder.path()).size() == 2);
  std::filesystem::remove_all(set_path(folder.path(), 3));
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    load(folder.path(), trainer.state(), world);
    CHECK(trainer.digest() == second);
  });
}

TEST_CASE("a copy in the background holds what was there when it began") {
  const TemporaryDirectory folder;
  std::string then;
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    AsyncSaver saver(folder.path(), world, {.copy_in_background = true});
    saver.wait_for_copy();
    for (int i = 0; i < 3; ++i) {
      trainer.step();
      if (world.rank() == 0) then = trainer.digest();
      saver.save(trainer.state());
      trainer.ddp(at::ones({8, 1100}));  // changes buffers, which are copied at once
      saver.wait_for_copy();
    }
    trainer.step();
    saver.wait();
  });
  run_worlds_or_throw(1, [&](const World& world) {
    Trainer<> trainer(world);
    load(folder.path(), trainer.state(), world);
    CHECK(trainer.digest() == then);
  });
}

TEST_CASE("what changes before it is copied is no checkpoint") {
  const TemporaryDirectory folder;
  run_worlds_or_throw(2, [&](const World& world) {
    Linear layer(8, 8);
    State state{.model = layer};
    SaveJob job = plan_save(folder.path(), state, {}, world);
    {
      const torch::NoGradGuard no_grad;
      layer->weight.add_(1);
    }
    PartCopies copies;
    std::optional<Error> failure;
    if (world.rank() == 0) {  // which writes what is small
      failure = error_of([&] { copies.take(job, PartCopies::Which::all); });
      CHECK_ERROR(*failure, ErrorKind::invalid_argument, "'model.weight' was changed", "wait_for_copy()");
    }
    // The other one has only read its values, and notices it as well.
    CHECK_ERROR(error_of([&] { run_save(job, world, failure); }), ErrorKind::invalid_argument,
                "'model.weight' was changed");
  });
  CHECK(list_sets(folder.path()).empty());
}

// fault: 23
TEST_CASE("a disk that is full ends a save on all ranks, and earlier checkpoints stay") {
  const TemporaryDirectory folder;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  run_worlds_or_throw(2, [&](const World& world) {
    Trainer<> trainer(world);
    trainer.step();
    AsyncSaver saver(folder.path(), world), strict(folder.path(), world, {.keep_going = false});
    saver.save(trainer.state());
    CHECK(saver.wait() == set_path(folder.path(), 1));
    trainer.step();
    world.barrier();
    if (world.rank() == 0) {
      const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
      REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    world.barrier();
    CHECK_ERROR(error_of([&] { save(folder.path(), trainer.state(), world); }), ErrorKind::internal, "File too large");
    saver.save(trainer.state());
    CHECK(saver.wait() == set_path(folder.path(), 1));
    strict.save(trainer.state());
    CHECK_ERROR(error_of([&] { strict.wait(); }), ErrorKind::internal, "File too large");
    world.barrier();
    if (world.rank() == 0) REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    world.barrier();
    saver.save(trainer.state());
    CHECK(saver.wait() == set_path(folder.path(), 2));
  });
  CHECK(list_sets(folder.path()).size() == 2);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

}  // namespace save_test
