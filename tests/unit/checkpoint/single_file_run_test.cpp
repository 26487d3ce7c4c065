// A TrainingRun goes on from the single files that earlier versions wrote.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/adam.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/checkpoint/single_file.h"
#include "tests/unit/checkpoint/training.h"

namespace single_file_run_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

// feature: H-11
TEST_CASE("a single file is resumed from, and sets take its place") {
  for (const bool is_of_first_version : {false, true}) {
    const TemporaryDirectory folder, other;
    run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
      const TrainingRunOptions options{.directory = folder.path(),
                                       .choices = {{"lr", "0.001"}},
                                       .untold = {{"lr", "0.001"}},
                                       .keep_last = 2,
                                       .every = 1};
      Training old(group, {.directory = other.path()});
      for (int step = 0; step < 3; ++step) {
        old.step();
        const auto number = static_cast<std::uint64_t>(old.run.position.step);
        save_checkpoint(step_path(folder.path(), number), single_file(old, is_of_first_version));
      }
      Training resumed(group, options);
      CHECK_ERROR(error_of([&] { resumed.step(); }), ErrorKind::invalid_argument,
                  "the newest step-0000000003.safetensors");
      const TrainingPosition& at = resumed.run.resume_if_any(resumed.ddp, resumed.optimizer);
      CHECK(at.step == 3);
      CHECK(at.samples == 6);
      CHECK(at.loss_sum == old.run.position.loss_sum);
      CHECK(resumed.digest() == old.digest());
      old.step();
      resumed.step();
      CHECK(resumed.digest() == old.digest());
      CHECK(list_sets(folder.path()).size() == 1);
      CHECK(list_step_files(folder.path()).size() == 1);  // with the set, the last two
      Training next(group, options);
      CHECK(next.run.resume(next.ddp, next.optimizer).step == 4);
      next.step();
      CHECK(list_sets(folder.path()).size() == 2);
      CHECK(list_step_files(folder.path()).empty());
    });
  }
}

TEST_CASE("a damaged single file is skipped, and one that is refused changes nothing") {
  const TemporaryDirectory folder, other;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) {
    Training old(group, {.directory = other.path()});
    old.step();
    const std::string first = step_path(folder.path(), 1), second = step_path(folder.path(), 2);
    save_checkpoint(first, single_file(old));
    save_checkpoint(second, single_file(old));
    std::filesystem::resize_file(second, std::filesystem::file_size(second) - 1);
    const CapturedLog log;
    Training resumed(group, {.directory = folder.path(), .choices = {{"lr", "0.001"}}});
    CHECK(resumed.run.resume(resumed.ddp, resumed.optimizer).step == 1);
    CHECK(log.text().find("the checkpoint of step 2 is skipped") != std::string::npos);
    std::filesystem::remove(second);

    const auto check_refusal = [&](const Checkpoint& file, ErrorKind kind, const std::string& why) {
      save_checkpoint(first, file);
      Training fresh(group, {.directory = folder.path(), .choices = {{"lr", "0.001"}}});
      const std::string before = fresh.digest();
      CHECK_ERROR(error_of([&] { fresh.run.resume(fresh.ddp, fresh.optimizer); }), kind, why);
      CHECK(fresh.digest() == before);
      CHECK(fresh.run.position.step == 0);
    };
    Checkpoint file = single_file(old);
    file.metadata["choice.lr"] = "0.1";
    check_refusal(file, ErrorKind::invalid_argument, "made with lr = 0.1, and this run has 0.001");
    file = single_file(old);
    file.metadata["shards"] = "2";
    check_refusal(file, ErrorKind::invalid_argument, "number of shards '2', but this run has 0");
    file = single_file(old);
    file.metadata["ranks"] = "x";
    check_refusal(file, ErrorKind::corrupt_data, "ranks");
    file = single_file(old);
    file.tensors["loss_so_far"] = at::zeros({1});
    check_refusal(file, ErrorKind::invalid_argument, "no valid 'loss_so_far'");
    file = single_file(old);
    file.tensors.erase("random.cpu");
    check_refusal(file, ErrorKind::invalid_argument, "no random state");
    save_checkpoint(first, single_file(old));
    nlohmann::json user;
    CHECK_ERROR(
        error_of([&] { resumed.run.resume({.model = resumed.ddp, .optimizer = resumed.optimizer, .user = user}); }),
        ErrorKind::invalid_argument, "has no user values, as it is a single file of an earlier version");
  });
}

}  // namespace single_file_run_test
