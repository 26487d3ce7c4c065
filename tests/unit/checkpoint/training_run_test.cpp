#include "lockstep/train/checkpoint/training_run.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/ddp/throughput.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/checkpoint/training.h"

namespace training_run_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

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

TEST_CASE("a run goes on if there is something to go on from, and begins otherwise") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .every = 2};
    Training begun(group, options);
    CHECK(begun.run.resume_if_any(begun.ddp, begun.optimizer).step == 0);
    for (int step = 0; step < 2; ++step) begun.step();
    CHECK(begun.run.resume_if_any(begun.ddp, begun.optimizer).step == 2);  // not to where it began
    Training resumed(group, options);
    CHECK(resumed.run.resume_if_any(resumed.ddp, resumed.optimizer).step == 2);
    CHECK(resumed.digest() == begun.digest());
  });
}

TEST_CASE("choices that differ among ranks are refused, and so on all what one cannot store") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const bool is_first = group.rank() == 0;
    CHECK_ERROR(error_of([&] {
                  TrainingRun(group, {.directory = folder.path(), .choices = {{"lr", is_first ? "1" : "2"}}});
                }),
                ErrorKind::invalid_argument, R"(rank 0 has {"lr":"1"}, rank 1 has {"lr":"2"})");
    CHECK_ERROR(error_of([&] {
                  TrainingRun(group, {.directory = folder.path(), .choices = {{is_first ? "a" : "\xff", "1"}}});
                }),
                ErrorKind::invalid_argument, "rank 1: the choices of a TrainingRun cannot be stored");
    int one = 1;
    group.all_reduce(one);
    CHECK(one == 2);
  });
}

TEST_CASE("a directory with the checkpoints of an earlier run is refused, or they are replaced") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .every = 2};
    const auto steps_kept = [&] {
      group.barrier();
      std::vector<std::uint64_t> steps;
      for (const SetPlace& set : list_sets(folder.path())) steps.push_back(set.step);
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

TEST_CASE("choices that cannot be stored are refused before any work is done") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto error = [&](const std::string& name, const std::string& value) {
      return error_of([&] { TrainingRun(group, {.directory = folder.path(), .choices = {{name, value}}}); });
    };
    CHECK_ERROR(error("x", "\xff"), ErrorKind::invalid_argument, "choices of a TrainingRun cannot be stored",
                "not UTF-8");
    CHECK_ERROR(error("\xff\xfe", "x"), ErrorKind::invalid_argument, "not UTF-8");
    CHECK_ERROR(error("x", std::string(65537, 'y')), ErrorKind::invalid_argument,
                "the name or value of 'x' has 65537 bytes; at most 65536");
  });
}

TEST_CASE("choices may have any names and values") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{
        .directory = folder.path(),
        .choices = {
            {"\xc3\xa9", "a\nb \"q\" \\"}, {"", ""}, {"two\nlines", std::string(65536, '\x01')}, {"\x01", "\x7f"}}};
    Training first(group, options);
    first.step();
    first.run.save(first.ddp, first.optimizer);
    Training second(group, options);
    CHECK(second.run.resume(second.ddp, second.optimizer).step == 1);
  });
}

TEST_CASE("an optimizer that cannot be kept is an error on all ranks at once") {
  struct OwnOptimizer : torch::optim::Optimizer {
    using Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path(), .every = 1000});
    OwnOptimizer other(training.ddp.parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
    CHECK_ERROR(error_of([&] { training.run.add_step(1, 4, training.ddp, other); }), ErrorKind::invalid_argument,
                "this model or optimizer cannot be saved: ", "only SGD, Adam");
    CHECK(training.run.position.step == 0);
    CHECK_ERROR(error_of([&] { training.run.save(training.ddp, other); }), ErrorKind::invalid_argument,
                "only SGD, Adam");
    training.run.save(training.ddp, training.optimizer);
  });
}

TEST_CASE("a model whose ranks have trained apart is not saved") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    training.step();
    {
      const at::NoGradGuard no_grad;
      training.model->bias += group.rank();
    }
    CHECK_ERROR(error_of([&] { training.run.save(training.ddp, training.optimizer); }), ErrorKind::desync, "model.bias",
                "rank 1");
    CHECK_FALSE(std::filesystem::exists(training.run.path()));
  });
}

// fault: 23
TEST_CASE("a disk that is full is an error on all ranks, and the run can be saved later") {
  const TemporaryDirectory folder;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  run_group_or_throw(3, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    training.step();
    group.barrier();
    if (group.rank() == 0) {
      const rlimit small{.rlim_cur = 100, .rlim_max = before.rlim_max};
      REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    group.barrier();
    CHECK_ERROR(error_of([&] { training.run.save(training.ddp, training.optimizer); }), ErrorKind::internal,
                "rank 0: ", "File too large");
    group.barrier();
    if (group.rank() == 0) REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    group.barrier();
    training.run.save(training.ddp, training.optimizer);
    CHECK(std::filesystem::exists(training.run.path()));
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

TEST_CASE("a batch that a rank repeats in join() does not count") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    const std::vector<double> losses = group.rank() == 0 ? std::vector<double>{5.0} : std::vector<double>{1.0, 3.0};
    join(group, losses, [&](double loss) { training.run.add_step(loss, 4, training.ddp, training.optimizer); });
    CHECK(training.run.mean_loss() == 3);
    CHECK(training.run.position.batch == 2);
  });
}

TEST_CASE("a checkpoint after a join has the buffers that training goes on with") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    torch::nn::BatchNorm1d model(3), other(3);
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1), another(other->parameters(), 0.1);
    TrainingRun run(group, {.directory = folder / "run"});
    // Rank 0 repeats a batch around 0 while rank 1 has some around 5.
    const std::vector<double> means(group.rank() == 0 ? 1 : 4, group.rank() * 5.0);
    join(group, means, [&](double mean) {
      optimizer.zero_grad();
      ddp(at::sin(at::arange(12, at::kFloat)).view({4, 3}) + mean).sum().backward();
      optimizer.step();
    });
    run.save(ddp, optimizer);
    save(folder / "set", State{.model = ddp, .optimizer = optimizer}, group);
    ddp.sync_buffers();
    CHECK(model->running_mean.mean().item<double>() > 1);
    DistributedDataParallel resumed(other, group);
    TrainingRun(group, {.directory = folder / "run"}).resume(resumed, another);
    CHECK(at::equal(other->running_mean, model->running_mean));
    other->running_mean.zero_();
    load(folder / "set", State{.model = resumed, .optimizer = another}, group);
    CHECK(at::equal(other->running_mean, model->running_mean));
  });
}

TEST_CASE("a set that save() has made is of no run") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    save(folder.path(), State{.model = training.ddp, .optimizer = training.optimizer, .step = 3}, group);
    CHECK_ERROR(error_of([&] { training.run.resume(training.ddp, training.optimizer); }), ErrorKind::invalid_argument,
                "has no 'batch', which every TrainingRun stores");
  });
}

TEST_CASE("a run needs a model that is wrapped") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    CHECK_ERROR(error_of([&] { training.run.save(training.model, training.optimizer); }), ErrorKind::invalid_argument,
                "needs a DistributedDataParallel as its model");
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
  CHECK(nlohmann::json::parse(line)["kind"] == "run");
  std::getline(file, line);
  CHECK(line == R"({"epoch": 0, "loss": 0.1, "bad": null, "world_size": 2})");
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["loss"] == 1e-300);
  CHECK(nlohmann::json::parse(line)["epoch"] == 1);
  CHECK(nlohmann::json::parse(line)["a \"b\"\\\n"] == 2);
  CHECK(!std::getline(file, line));
}

TEST_CASE("ranks tell what they spent their steps on, all of them the same, and rank 0 writes it down") {
  const TemporaryDirectory folder;
  for (const Over over : {Over::arena, Over::links}) {
    const std::filesystem::path directory = folder / (over == Over::arena ? "arena" : "links");
    run_group_or_throw(3, over, [&](const ProcessGroup& group) {
      Training training(group, {.directory = directory});
      for (int step = 0; step < 19; ++step) training.step();
      CHECK_FALSE(training.run.step_report());
      training.step();
      REQUIRE(training.run.step_report());
      const StepReport& report = *training.run.step_report();
      CHECK(report.steps == 19);  // without the first one
      CHECK(report.ranks.size() == 3);
      const auto rank = static_cast<std::size_t>(group.rank());
      CHECK(training.ddp.step_times().steps == 19);
      CHECK(report.ranks[rank].times.total() == doctest::Approx(training.ddp.step_times().mean().total()));
      CHECK(report.ranks[rank].times.forward > 0);
      CHECK(report.ranks[rank].times.backward > 0);
      CHECK(report.ranks[rank].times.optimizer > 0);
      CHECK(report.ranks[rank].times.compute == 0);
      double total = 0;
      for (const RankSteps& each : report.ranks) total += each.times.total();
      double least = total;
      group.all_reduce(least, ReduceOp::min);
      CHECK(least == total);
    });
    std::ifstream file(directory / "metrics.jsonl");
    std::string line;
    std::getline(file, line);
    CHECK(nlohmann::json::parse(line)["kind"] == "run");
    std::getline(file, line);
    CHECK(nlohmann::json::parse(line)["kind"] == "steps");
    CHECK(nlohmann::json::parse(line)["step"] == 20);
  }
}

TEST_CASE("evaluations and checkpoints belong to no step") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training training(group, {.directory = folder.path()});
    for (int step = 0; step < 5; ++step) training.step();
    const double before = training.ddp.step_times().total();
    {
      const at::NoGradGuard no_grad;
      training.ddp(at::ones({2, 3}));
    }
    training.run.save(training.ddp, training.optimizer);
    CHECK(training.ddp.step_times().steps == 4);
    CHECK(training.ddp.step_times().total() == before);
  });
}

}  // namespace training_run_test
