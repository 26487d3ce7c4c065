#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/checkpoint/training.h"

namespace resumption_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

TEST_CASE("another run is refused, and what an older program has not told counts as it was then") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training first(group, {.directory = folder.path(), .choices = {{"batch_size", "24"}}});
    CHECK_ERROR(error_of([&] { first.run.resume(first.ddp, first.optimizer); }), ErrorKind::invalid_argument,
                "there is no undamaged checkpoint in " + folder.path());
    first.run.save(first.ddp, first.optimizer);
    Training other(group, {.directory = folder.path(), .choices = {{"batch_size", "12"}}});
    CHECK_ERROR(error_of([&] { other.run.resume(other.ddp, other.optimizer); }), ErrorKind::invalid_argument,
                "made with batch_size = 24, and this run has 12");
    const auto with_parts = [&](const std::string& parts) {
      return TrainingRunOptions{
          .directory = folder.path(), .choices = {{"batch_size", "24"}, {"parts", parts}}, .untold = {{"parts", "1"}}};
    };
    Training same(group, with_parts("1"));
    same.run.resume(same.ddp, same.optimizer);
    Training in_two(group, with_parts("2"));
    CHECK_ERROR(error_of([&] { in_two.run.resume(in_two.ddp, in_two.optimizer); }), ErrorKind::invalid_argument,
                "made with parts = 1, and this run has 2");
    CHECK_ERROR(error_of([&] { TrainingRun(group, {.directory = "/proc/nowhere"}); }), ErrorKind::invalid_argument,
                "cannot write to the directory /proc/nowhere");
  });
}

TEST_CASE("a checkpoint that is refused changes nothing") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path()};
    Training first(group, options);
    first.step();
    first.run.save(first.ddp, first.optimizer);
    const auto check_refusal = [&](const std::string& reason, auto& ddp, torch::optim::Optimizer& optimizer) {
      TrainingRun run(group, options);
      const std::string before = sha256_of(*ddp.module(), optimizer);
      CHECK_ERROR(error_of([&] { run.resume(ddp, optimizer); }), ErrorKind::invalid_argument, reason);
      CHECK(sha256_of(*ddp.module(), optimizer) == before);
      CHECK(run.position.step == 0);
    };
    Training second(group, options);
    torch::optim::Adam adam(second.ddp.parameters());
    check_refusal("has the state of the SGD optimizer", second.ddp, adam);
    DistributedDataParallel other(torch::nn::Linear(torch::nn::LinearOptions(3, 1).bias(false)), group);
    check_refusal("does not fit the module", other, second.optimizer);
  });
}

TEST_CASE("a directory with nothing but a set without its manifest is not taken for an empty one") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training first(group, {.directory = folder.path()});
    first.run.save(first.ddp, first.optimizer);
    if (group.rank() == 0) std::filesystem::remove(first.run.path() / "manifest.json");
    group.barrier();
    Training second(group, {.directory = folder.path()});
    CHECK_ERROR(error_of([&] { second.run.resume_if_any(second.ddp, second.optimizer); }), ErrorKind::corrupt_data,
                "every checkpoint in " + folder.path());
    CHECK_ERROR(error_of([&] { second.step(); }), ErrorKind::invalid_argument, "has checkpoints of an earlier run");
  });
}

TEST_CASE("what one rank refuses changes nothing on any") {
  const TemporaryDirectory folder, empty;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path()};
    Training first(group, options);
    first.step();
    first.run.save(first.ddp, first.optimizer);
    const bool is_first = group.rank() == 0;
    Training second(group, options);
    const std::string before = second.digest();
    torch::optim::Adam adam(second.ddp.parameters());
    torch::optim::Optimizer& mixed = is_first ? static_cast<torch::optim::Optimizer&>(second.optimizer) : adam;
    CHECK_ERROR(error_of([&] { second.run.resume(second.ddp, mixed); }), ErrorKind::invalid_argument,
                "rank 0 loads optimizer torch::optim::SGD, rank 1 optimizer torch::optim::Adam");
    CHECK(second.run.position.step == 0);
    CHECK(second.digest() == before);
    TrainingRun elsewhere(group, {.directory = is_first ? folder.path() : empty.path()});
    CHECK_ERROR(error_of([&] { elsewhere.resume(second.ddp, second.optimizer); }), ErrorKind::invalid_argument,
                empty.path());
    CHECK(second.digest() == before);
  });
}

TEST_CASE("a run in lockstep mode goes on with its own steps and seed") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto run_of = [&](std::uint64_t seed, const auto& use) {
      DistributedDataParallel ddp(torch::nn::Linear(3, 1), group, {.lockstep = {.shards = 2, .seed = seed}});
      torch::optim::SGD optimizer(ddp.parameters(), 0.01);
      TrainingRun run(group, {.directory = folder.path()});
      use(ddp, optimizer, run);
    };
    run_of(1, [&](auto& ddp, auto& optimizer, TrainingRun& run) {
      for (int part = 0; part < 3; ++part) {  // of one step of the run
        ddp.for_each_shard([&](const Shard&) {
          const at::Tensor loss = ddp(at::ones({2, 3})).mean();
          loss.backward();
          return loss.template item<double>();
        });
      }
      run.add_step(0, 2, ddp, optimizer);
      run.save(ddp, optimizer);
    });
    run_of(1, [&](auto& ddp, auto& optimizer, TrainingRun& run) {
      CHECK(run.resume(ddp, optimizer).step == 1);
      CHECK(ddp.lockstep_state().step == 3);
    });
    run_of(2, [&](auto& ddp, auto& optimizer, TrainingRun& run) {
      CHECK_ERROR(error_of([&] { run.resume(ddp, optimizer); }), ErrorKind::invalid_argument,
                  "the seed of lockstep mode '1', but this run has 2");
    });
  });
}

TEST_CASE("who goes on in mid-epoch with other ranks and other steps is warned") {
  const TemporaryDirectory folder;
  const auto run = [&](int ranks, bool resumes, std::int64_t samples) {
    const CapturedLog log;
    run_group_or_throw(ranks, Over::arena, [&](const ProcessGroup& group) {
      Training training(group, {.directory = folder.path()});
      if (resumes) training.run.resume(training.ddp, training.optimizer);
      if (!resumes) training.run.start_anew();
      training.run.add_step(1, samples, training.ddp, training.optimizer);
      if (!resumes) training.run.save(training.ddp, training.optimizer);
    });
    return log.text();
  };
  CHECK(run(1, false, 20) == "");
  CHECK(run(2, true, 10) == "");
  const std::string text = run(2, true, 20);
  CHECK(text.find("a step had 20 samples and now has 40") != std::string::npos);
  CHECK(run(1, true, 40) == "");  // as many ranks as before
}

TEST_CASE("choices may have any names, and a checkpoint that does not tell one is refused") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    TrainingRunOptions options{.directory = folder.path()};
    for (const char* name : {"step", "epoch", "batch", "shards", "threads", "arithmetic", "optimizer.type"}) {
      options.choices.insert({name, "128"});
    }
    Training first(group, options);
    first.step();
    first.run.save(first.ddp, first.optimizer);
    Training resumed(group, options);
    const TrainingPosition& from = resumed.run.resume(resumed.ddp, resumed.optimizer);
    CHECK(from.step == 1);
    CHECK(from.epoch == 0);
    CHECK(from.batch == 1);
    options.choices["batch"] = "64";
    Training other(group, options);
    CHECK_ERROR(error_of([&] { other.run.resume(other.ddp, other.optimizer); }), ErrorKind::invalid_argument,
                "made with batch = 128, and this run has 64");
    Training stranger(group, {.directory = folder.path(), .choices = {{"lr", "0.1"}}});
    CHECK_ERROR(error_of([&] { stranger.run.resume(stranger.ddp, stranger.optimizer); }), ErrorKind::invalid_argument,
                "does not record the choice 'lr', which is '0.1' in this run");
  });
}

TEST_CASE("every rank goes on with its own random numbers, among another number of ranks with new ones") {
  Checkpoint checkpoint;
  std::vector<at::Tensor> expected;
  for (const int rank : {0, 1}) {
    at::manual_seed(static_cast<std::uint64_t>(rank) + 40);
    add_random_state(checkpoint, rank == 0 ? "random.cpu" : "random.cpu.rank1");
    expected.push_back(at::randn({3}));
  }
  const auto drawn = [&](int rank, int ranks) {
    set_random_state(own_random_state(checkpoint, rank, ranks));
    return at::randn({3});
  };
  for (const int rank : {0, 1}) CHECK(at::equal(drawn(rank, 2), expected[static_cast<std::size_t>(rank)]));
  for (const int ranks : {1, 3, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor numbers = drawn(rank, ranks);
      CHECK(at::equal(numbers, drawn(rank, ranks)));
      for (int other = 0; other < rank; ++other) CHECK(!at::equal(numbers, drawn(other, ranks)));
      for (const at::Tensor& old : expected) CHECK(!at::equal(numbers, old));
    }
  }
}

TEST_CASE("processes draw after a resume what they drew after the checkpoint") {
  const TemporaryDirectory folder;
  const auto draws_again = [&](int rank) {
    const World world =
        init_process_group({.init_method = "file://" + folder / "store", .rank = rank, .world_size = 2});
    at::manual_seed(static_cast<std::uint64_t>(rank) + 1);
    Training training(world, {.directory = folder / "run"});
    training.run.save(training.ddp, training.optimizer);
    const at::Tensor after_save = at::randn({3});
    training.run.resume(training.ddp, training.optimizer);
    const auto after_resume = world.all_gather(at::randn({3}));
    return at::equal(after_resume[static_cast<std::size_t>(rank)], after_save) &&
           !at::equal(after_resume[0], after_resume[1]);
  };
  const pid_t first = start_child([&] { return draws_again(0); }), second = start_child([&] { return draws_again(1); });
  CHECK(exit_code_of(first) == 0);
  CHECK(exit_code_of(second) == 0);
}

}  // namespace resumption_test
