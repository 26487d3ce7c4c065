// The directory of a TrainingRun: which checkpoints are resumed from, replaced and removed, and what its log may do.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/step_files.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/checkpoint/single_file.h"
#include "tests/unit/checkpoint/training.h"

namespace run_directory_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

namespace {

const std::map<std::string, std::string> kChoices{{"lr", "0.001"}};  // as in single_file()

Steps sets_in(const fs::path& directory) {
  Steps steps;
  for (const SetPlace& set : list_sets(directory)) steps.push_back(set.step);
  return steps;
}

Steps files_in(const fs::path& directory) {
  Steps steps;
  for (const StepFile& file : list_step_files(directory)) steps.push_back(file.step);
  return steps;
}

void cut_short(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); }

void damage_set(const fs::path& set) { std::ofstream(set / "manifest.json") << "{}"; }

// In a directory with the sticky bit a set of root cannot be renamed by another user.
constexpr uid_t kNobody = 65534;

void give_to_nobody(const fs::path& path) {
  REQUIRE(::chown(path.c_str(), kNobody, kNobody) == 0);
  if (!fs::is_directory(path)) return;
  for (const auto& entry : fs::directory_iterator(path)) give_to_nobody(entry.path());
}

}  // namespace

TEST_CASE("a run begun anew replaces the earlier one as a whole, or its checkpoint does not appear") {
  if (::geteuid() != 0) return;
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .keep_last = 2, .every = 1};
    Training first(group, options);
    for (int step = 0; step < 6; ++step) first.step();
    save_checkpoint(step_path(folder.path(), 3), single_file(first));
    give_to_nobody(set_path(folder.path(), 5));
    give_to_nobody(step_path(folder.path(), 3));
    give_to_nobody(folder / "metrics.jsonl");
    fs::permissions(folder.path(), fs::perms(01777));
    fs::permissions(set_path(folder.path(), 6), fs::perms(0755));

    Training second(group, options);
    second.run.start_anew();
    REQUIRE(::seteuid(kNobody) == 0);
    const Error error = error_of([&] { second.step(); });
    REQUIRE(::seteuid(0) == 0);
    CHECK_ERROR(error, ErrorKind::internal, "step-0000000006", "earlier run");
    CHECK(sets_in(folder.path()) == Steps{6});  // the newest goes last
    CHECK(files_in(folder.path()).empty());
    second.step();
    CHECK(sets_in(folder.path()) == Steps{2});
    second.step();
    CHECK(sets_in(folder.path()) == Steps{3, 2});
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 3);  // with the log
  });
}

TEST_CASE("a run begun anew replaces damaged checkpoints too, and no directory of the user") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .keep_last = 0, .every = 1};
    Training first(group, options);
    for (int step = 0; step < 3; ++step) first.step();
    damage_set(set_path(folder.path(), 2));
    fs::remove(set_path(folder.path(), 3) / "manifest.json");
    fs::create_directory(folder / "step-0000000009");
    std::ofstream(folder / "step-0000000009/notes.safetensors") << "mine";
    Training second(group, options);
    second.run.start_anew();
    second.step();
    CHECK(sets_in(folder.path()) == Steps{1});
    CHECK_FALSE(fs::exists(set_path(folder.path(), 3)));
    CHECK(fs::exists(folder / "step-0000000009/notes.safetensors"));
  });
}

TEST_CASE("the newest undamaged one of sets and single files is resumed from") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const bool is_first = group.rank() == 0;
    const auto resumed_step = [&] {
      group.barrier();
      Training resumed(group, {.directory = folder.path(), .choices = kChoices});
      const std::int64_t step = resumed.run.resume(resumed.ddp, resumed.optimizer).step;
      group.barrier();
      return step;
    };
    Training run(group, {.directory = folder.path(), .choices = kChoices, .keep_last = 0, .every = 1});
    run.step();
    run.step();
    if (is_first) save_checkpoint(step_path(folder.path(), 2), single_file(run));
    CHECK(resumed_step() == 2);
    run.step();
    CHECK(resumed_step() == 3);
    if (is_first) {
      damage_set(set_path(folder.path(), 3));
      // A byte of a part, which only reading it shows; the single file of this step is whole.
      std::fstream part(set_path(folder.path(), 2) / "part-00000-of-00002.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      part.seekp(-1, std::ios::end).put('x');
    }
    CHECK(resumed_step() == 2);
    if (is_first) cut_short(step_path(folder.path(), 2));
    CHECK(resumed_step() == 1);
  });
}

TEST_CASE("rotation counts sets and single files by step") {
  const TemporaryDirectory folder;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    const TrainingRunOptions options{.directory = folder.path(), .choices = kChoices, .keep_last = 2};
    Training run(group, options);
    for (int step = 1; step <= 3; ++step) {
      run.step();
      if (step != 3) run.run.save(run.ddp, run.optimizer);
    }
    save_checkpoint(step_path(folder.path(), 3), single_file(run));
    Training resumed(group, options);
    CHECK(resumed.run.resume(resumed.ddp, resumed.optimizer).step == 3);
    resumed.step();
    resumed.run.save(resumed.ddp, resumed.optimizer);
    CHECK(sets_in(folder.path()) == Steps{4});
    CHECK(files_in(folder.path()) == Steps{3});
  });
}

TEST_CASE("a set that has lost its manifest does not stop the run that reaches its step again") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training run(group, {.directory = folder.path(), .every = 1});
    run.step();
    run.step();
    if (group.rank() == 0) fs::remove(set_path(folder.path(), 2) / "manifest.json");
    group.barrier();
    Training resumed(group, {.directory = folder.path(), .every = 1});
    CHECK(resumed.run.resume(resumed.ddp, resumed.optimizer).step == 1);
    resumed.step();
    CHECK(resumed.digest() == run.digest());
    group.barrier();
    CHECK(sets_in(folder.path()) == Steps{2, 1});
  });
}

TEST_CASE("a log that can no longer be written does not stop a training, and is reported once") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training run(group, {.directory = folder.path(), .every = 1});
    if (group.rank() == 0) fs::create_directory(folder / "metrics.jsonl");
    std::optional<CapturedLog> log;  // of the process: rank 0 takes it
    if (group.rank() == 0) log.emplace();
    group.barrier();
    run.step();
    run.step();
    run.run.log_metrics({{"loss", 1}});
    group.barrier();
    CHECK(sets_in(folder.path()) == Steps{2, 1});
    if (group.rank() == 0) {
      const std::string text = log->text(), part = "training continues without these lines";
      CHECK(contains(text, folder / "metrics.jsonl"));
      CHECK(contains(text, part));
      CHECK(text.find(part) == text.rfind(part));
    }
    group.barrier();
  });
}

TEST_CASE("a log that is no file is refused on all ranks at the start") {
  const TemporaryDirectory folder;
  fs::create_directory(folder / "metrics.jsonl");
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    CHECK_ERROR(error_of([&] { TrainingRun(group, {.directory = folder.path()}); }), ErrorKind::invalid_argument,
                folder / "metrics.jsonl", "is not a regular file");
    group.barrier();
  });
}

TEST_CASE("a relative directory stays the same when the program goes to another one") {
  const TemporaryDirectory folder, elsewhere;
  const fs::path before = fs::current_path();
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    fs::current_path(folder.path());
    Training run(group, {.directory = "run"});
    fs::current_path(elsewhere.path());
    run.step();
    run.run.save(run.ddp, run.optimizer);
    fs::current_path(before);
    CHECK(run.run.path() == set_path(folder / "run", 1));
    CHECK(sets_in(folder / "run") == Steps{1});
    CHECK(fs::is_empty(elsewhere.path()));
  });
}

TEST_CASE("a position that could not be resumed is not saved") {
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Training run(group, {.directory = folder.path()});
    run.step();
    const auto check = [&](auto change, const std::string& why) {
      const TrainingPosition before = run.run.position;
      change(run.run.position);
      CHECK_ERROR(error_of([&] { run.run.save(run.ddp, run.optimizer); }), ErrorKind::invalid_argument, why);
      run.run.position = before;
    };
    const bool is_second = group.rank() == 1;
    check([&](TrainingPosition& at) { at.samples = is_second ? -5 : 1; }, "samples is -4");
    check([&](TrainingPosition& at) { at.samples = 999'999'999'999'999; }, "samples is 1999999999999998");
    check([&](TrainingPosition& at) { at.batch = is_second ? -1 : 1; }, "rank 1: ");
    check([&](TrainingPosition& at) { at.epoch = -3; }, "epoch is -3");
    check([&](TrainingPosition& at) { at.step = -2; }, "step is -2");
    CHECK(sets_in(folder.path()).empty());
    run.run.save(run.ddp, run.optimizer);
  });
}

TEST_CASE("choices are compared one by one, among ranks and with the checkpoint") {
  using Choices = std::map<std::string, std::string>;
  const TemporaryDirectory folder;
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const Choices mine = group.rank() == 0 ? Choices{{"a", "1, b = 2"}} : Choices{{"a", "1"}, {"b", "2"}};
    CHECK_ERROR(error_of([&] { TrainingRun(group, {.directory = folder.path(), .choices = mine}); }),
                ErrorKind::invalid_argument, R"(rank 0 has {"a":"1, b = 2"}, rank 1 has {"a":"1","b":"2"})");
    Training run(group, {.directory = folder.path(), .choices = {{"lr", "2"}, {"a", "1"}}});
    run.run.save(run.ddp, run.optimizer);
    Training other(group, {.directory = folder.path(), .choices = {{"a", "1"}}});
    CHECK_ERROR(error_of([&] { other.run.resume(other.ddp, other.optimizer); }), ErrorKind::invalid_argument,
                "has the choice 'lr' = '2', which this run does not give");
  });
}

}  // namespace run_directory_test
