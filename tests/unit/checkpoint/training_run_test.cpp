#include "lockstep/checkpoint/training_run.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/state_digest.h"
#include "lockstep/ddp/throughput.h"
#include "lockstep/group/world.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// A rank of a training, with everything that belongs to it.
struct Training {
  Training(const ProcessGroup& group, const TrainingRunOptions& options) : ddp(model, group), run(group, options) {}

  void step() {
    optimizer.zero_grad();
    const at::Tensor loss = ddp(at::ones({2, 3}) * static_cast<double>(run.position.step + 1)).pow(2).mean();
    loss.backward();
    optimizer.step();
    run.add_step(loss.item<double>(), 2, ddp, optimizer);
  }
  std::string digest() { return sha256_of(*model, optimizer); }

  torch::nn::Linear model{3, 1};
  DistributedDataParallel<torch::nn::Linear> ddp;
  torch::optim::SGD optimizer{ddp.parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)};
  TrainingRun run;
};

}  // namespace

TEST_CASE("a run goes on where it stood, with the same bits") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder / "run", .choices = {{"lr", "0.001"}}, .every = 3};
    Training whole(group, options);
    for (int step = 0; step < 5; ++step) whole.step();
    const double mean = whole.run.mean_loss();
    Training resumed(group, options);
    const TrainingPosition& from = resumed.run.resume(resumed.ddp, resumed.optimizer);
    CHECK(from.step == 3);
    CHECK(from.batch == 3);
    CHECK(from.samples == (group.rank() == 0 ? 12 : 0));  // of both ranks
    for (int step = 0; step < 2; ++step) resumed.step();
    CHECK(resumed.digest() == whole.digest());
    CHECK(resumed.run.mean_loss() == doctest::Approx(mean));
    resumed.run.position.begin_next_epoch();
    CHECK(resumed.run.position.epoch == 1);
    CHECK(resumed.run.position.step == 5);
    CHECK(resumed.run.position.samples == 0);
  });
}

TEST_CASE("another run is refused, and what an older program has not told counts as it was then") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training first(group, {.directory = folder.path(), .choices = {{"batch_size", "24"}}});
    CHECK_ERROR(error_of([&] { first.run.resume(first.ddp, first.optimizer); }), ErrorKind::invalid_argument,
                "there is no checkpoint in " + folder.path());
    first.run.save(first.ddp, first.optimizer);
    Training other(group, {.directory = folder.path(), .choices = {{"batch_size", "12"}}});
    CHECK_ERROR(error_of([&] { other.run.resume(other.ddp, other.optimizer); }), ErrorKind::invalid_argument,
                "made with batch_size 24, this run has 12");
    const auto with_parts = [&](const std::string& parts) {
      return TrainingRunOptions{
          .directory = folder.path(), .choices = {{"batch_size", "24"}, {"parts", parts}}, .untold = {{"parts", "1"}}};
    };
    Training same(group, with_parts("1"));
    same.run.resume(same.ddp, same.optimizer);
    Training in_two(group, with_parts("2"));
    CHECK_ERROR(error_of([&] { in_two.run.resume(in_two.ddp, in_two.optimizer); }), ErrorKind::invalid_argument,
                "made with parts 1, this run has 2");
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
    const Checkpoint whole = load_checkpoint(first.run.path());
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
    for (const auto& [name, reason] : std::map<std::string, std::string>{
             {"random.cpu", "no random state"}, {"loss_so_far", "two numbers 'loss_so_far'"}}) {
      Checkpoint damaged = whole;
      damaged.tensors[name] = at::zeros({1});
      save_checkpoint(first.run.path(), damaged);
      check_refusal(name == "random.cpu" ? "is no state of a CPU generator" : reason, second.ddp, second.optimizer);
      damaged.tensors.erase(name);
      save_checkpoint(first.run.path(), damaged);
      check_refusal(reason, second.ddp, second.optimizer);
    }
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
    const Checkpoint whole = is_first ? load_checkpoint(first.run.path()) : Checkpoint();
    Training second(group, options);
    const std::string before = second.digest();
    const auto check_refusal = [&](TrainingRun& run, torch::optim::Optimizer& optimizer, const std::string& reason) {
      CHECK_ERROR(error_of([&] { run.resume(second.ddp, optimizer); }), ErrorKind::invalid_argument,
                  is_first ? "rank 1: " : "", reason);
      CHECK(second.digest() == before);
      CHECK(run.position.step == 0);
    };
    torch::optim::Adam adam(second.ddp.parameters());
    check_refusal(second.run, is_first ? static_cast<torch::optim::Optimizer&>(second.optimizer) : adam,
                  "has the state of the SGD optimizer");
    TrainingRun elsewhere(group, {.directory = is_first ? folder.path() : empty.path()});
    check_refusal(elsewhere, second.optimizer, "no such file");
    if (is_first) {
      Checkpoint damaged = whole;
      damaged.tensors["random.cpu.rank1"] = at::zeros({1});
      save_checkpoint(first.run.path(), damaged);
    }
    group.barrier();
    check_refusal(second.run, second.optimizer, "is no state of a CPU generator");
  });
}

TEST_CASE("numbers of a checkpoint that no run has are refused") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path()};
    Training first(group, options);
    first.run.save(first.ddp, first.optimizer);
    const Checkpoint whole = load_checkpoint(first.run.path());
    const auto check_refusal = [&](const Checkpoint& damaged) {
      save_checkpoint(first.run.path(), damaged);
      Training second(group, options);
      CHECK_ERROR(error_of([&] { second.run.resume(second.ddp, second.optimizer); }), ErrorKind::corrupt_data,
                  folder.path());
    };
    for (const auto& [name, value] : std::multimap<std::string, std::string>{
             {"step", "-4"}, {"epoch", "5000000000"}, {"batch", "-1"}, {"threads", "-1"}, {"ranks", "x"}}) {
      Checkpoint damaged = whole;
      damaged.metadata[name] = value;
      check_refusal(damaged);
    }
    Checkpoint damaged = whole;
    damaged.tensors["loss_so_far"] = at::tensor({0.0, std::nan("")}, at::kDouble);
    check_refusal(damaged);
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
                  "the seed of lockstep mode 1, this run has 2");
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
  CHECK(text.find("a step had 20 samples and has 40 now") != std::string::npos);
  CHECK(run(1, true, 40) == "");  // as many ranks as before
}

TEST_CASE("choices that differ among ranks are refused, and so on all what one cannot store") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const bool is_first = group.rank() == 0;
    CHECK_ERROR(error_of([&] {
                  TrainingRun(group, {.directory = folder.path(), .choices = {{"lr", is_first ? "1" : "2"}}});
                }),
                ErrorKind::invalid_argument, "rank 0 has lr = 1, rank 1 has lr = 2");
    CHECK_ERROR(error_of([&] {
                  TrainingRun(group, {.directory = folder.path(), .choices = {{is_first ? "a" : "\x01", "1"}}});
                }),
                ErrorKind::invalid_argument, "rank 1: the choices of a TrainingRun cannot be stored");
    int one = 1;
    group.all_reduce(one);
    CHECK(one == 2);
  });
}

TEST_CASE("what a killed writer left goes when the next run begins") {
  const TemporaryDirectory folder;
  const std::string left = folder / ".step-0000000003.safetensors.writing-0123456789abcdef";
  const std::string other = folder / ".notes.writing-0123456789abcdef";
  for (const std::string& path : {left, other}) std::ofstream(path) << "left";
  run_group_or_throw(1, Over::arena,
                     [&](const ProcessGroup& group) { TrainingRun(group, {.directory = folder.path()}); });
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK(std::filesystem::exists(other));
}

TEST_CASE("a directory with the checkpoints of an earlier run is refused, or they are replaced") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .every = 2};
    const auto steps_kept = [&] {
      group.barrier();
      std::vector<std::uint64_t> steps;
      for (const StepFile& file : list_step_files(folder.path())) steps.push_back(file.step);
      group.barrier();
      return steps;
    };
    Training first(group, options);
    for (int step = 0; step < 10; ++step) first.step();
    CHECK(steps_kept() == std::vector<std::uint64_t>{10, 8, 6});

    Training second(group, options);
    const std::string why = folder.path() + " has checkpoints of an earlier run, the newest step-0000000010";
    CHECK_ERROR(error_of([&] { second.step(); }), ErrorKind::invalid_argument, why, "start_anew()");
    CHECK_ERROR(error_of([&] { second.run.save(second.ddp, second.optimizer); }), ErrorKind::invalid_argument, why);
    second.run.start_anew();
    second.step();
    CHECK(steps_kept().size() == 3);
    for (int step = 0; step < 3; ++step) second.step();
    CHECK(steps_kept() == std::vector<std::uint64_t>{4, 2});
    Training resumed(group, options);
    CHECK(resumed.run.resume(resumed.ddp, resumed.optimizer).step == 4);
    for (int step = 0; step < 4; ++step) resumed.step();
    CHECK(steps_kept() == std::vector<std::uint64_t>{8, 6, 4});
  });
}

TEST_CASE("a directory that cannot be used is an error on all ranks") {
  run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
    CHECK_ERROR(error_of([&] { TrainingRun(group, {.directory = "/proc/nowhere"}); }), ErrorKind::invalid_argument,
                "cannot write to the directory /proc/nowhere");
    group.barrier();
  });
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
                "made with batch 128, this run has 64");
    Training stranger(group, {.directory = folder.path(), .choices = {{"lr", "0.1"}}});
    CHECK_ERROR(error_of([&] { stranger.run.resume(stranger.ddp, stranger.optimizer); }), ErrorKind::invalid_argument,
                "does not tell its lr, this run has 0.1");
  });
}

TEST_CASE("choices that cannot be stored are refused before any work is done") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto error = [&](const std::string& name, const std::string& value) {
      return error_of([&] { TrainingRun(group, {.directory = folder.path(), .choices = {{name, value}}}); });
    };
    CHECK_ERROR(error("x", "\xff"), ErrorKind::invalid_argument, "choices of a TrainingRun cannot be stored",
                "not UTF-8");
    CHECK_ERROR(error("\xff\xfe", "x"), ErrorKind::invalid_argument, "not UTF-8");
    CHECK_ERROR(error("two\nlines", "x"), ErrorKind::invalid_argument, "control characters");
    CHECK_ERROR(error(std::string(1 << 20, 'x'), "x"), ErrorKind::invalid_argument, "a name of 1048583 bytes");
    CHECK_ERROR(error("x", std::string(1 << 20, 'y')), ErrorKind::invalid_argument, "longer than");
    const TrainingRun fine(group, {.directory = folder.path(), .choices = {{"\xc3\xa9", "a\nb \"q\" \\"}, {"", ""}}});
  });
}

TEST_CASE("an optimizer that cannot be kept is an error on all ranks at once") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    const torch::optim::LBFGS other(training.ddp.parameters());
    CHECK_ERROR(error_of([&] { training.run.save(training.ddp, other); }), ErrorKind::invalid_argument,
                "TrainingRun cannot keep this optimizer", "only SGD, Adam", "ZeroRedundancyOptimizer");
    training.run.save(training.ddp, training.optimizer);
  });
}

TEST_CASE("every rank goes on with its own random numbers, among another number of ranks with new ones") {
  const TemporaryDirectory folder;
  Checkpoint checkpoint;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    training.run.save(training.ddp, training.optimizer);
    if (group.rank() == 0) checkpoint = load_checkpoint(training.run.path());
  });
  REQUIRE(checkpoint.tensors.contains("random.cpu.rank1"));
  CHECK(!checkpoint.tensors.contains("random.cpu.rank2"));
  // The ranks above are threads, which have one generator; those of the next test are processes.
  std::vector<at::Tensor> expected;
  for (const int rank : {0, 1}) {
    at::manual_seed(static_cast<std::uint64_t>(rank) + 40);
    add_random_state(checkpoint, rank == 0 ? "random.cpu" : "random.cpu.rank1");
    expected.push_back(at::randn({3}));
  }
  const auto drawn = [&](int rank, int ranks) {
    load_own_random_state(checkpoint, rank, ranks);
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
  run_ranks(2, [&](int rank) {
    const auto draws_again = [&] {
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
    CHECK(exit_code_of_child(draws_again) == 0);
  });
}

TEST_CASE("a batch without samples does not count, whatever its loss is") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    const double none = std::numeric_limits<double>::quiet_NaN();
    training.run.add_step(group.rank() == 0 ? 3.0 : none, group.rank() == 0 ? 4 : 0, training.ddp, training.optimizer);
    CHECK(training.run.mean_loss() == 3);
    training.run.add_step(group.rank() == 0 ? none : 1.0, group.rank() == 0 ? 0 : 4, training.ddp, training.optimizer);
    CHECK(training.run.mean_loss() == 2);
    CHECK(training.run.position.batch == 2);
  });
}

TEST_CASE("metrics are lines of JSON, one an epoch") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    Throughput speed(training.ddp);
    training.step();
    speed.add(2);
    speed = speed.over_all_ranks();
    CHECK(speed.samples_per_second() > 0);
    CHECK(speed.communication_share() <= 1);
    training.run.log_metrics({{"loss", 0.1}, {"bad", std::numeric_limits<double>::quiet_NaN()}});
    training.run.position.begin_next_epoch();
    training.run.log_metrics({{"loss", 1e-300}, {"a \"b\"\\\n", 2}, {"\xff", 3}});
  });
  std::ifstream file(folder / "metrics.jsonl");
  std::string line;
  std::getline(file, line);
  CHECK(line == R"({"epoch": 0, "loss": 0.1, "bad": null, "world_size": 2})");
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["loss"] == 1e-300);
  CHECK(nlohmann::json::parse(line)["epoch"] == 1);
  CHECK(nlohmann::json::parse(line)["a \"b\"\\\n"] == 2);
  CHECK(!std::getline(file, line));
}
