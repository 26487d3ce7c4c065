// kill -9 of a whole job while an AsyncSaver writes: what was published stays, and what loads is whole.
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <random>
#include <thread>

#include "lockstep/base/unique_fd.h"
#include "lockstep/train/checkpoint/async_saver.h"
#include "lockstep/train/checkpoint/save.h"
#include "tests/process/checkpoint/traced_process.h"
#include "tests/support/forked_child.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace async_kill_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::end_process;
using lockstep::testing::exit_code_of_child;
using lockstep::testing::run_worlds;
using lockstep::testing::run_worlds_or_throw;

namespace {

using Model = DistributedDataParallel<torch::nn::Linear>;

// Two ranks that save after every step, whose number is all that the model holds, and announce what is on the disk.
void train(const std::filesystem::path& directory, int announced) {
  run_worlds(2, [&](const World& world) {
    Model ddp(torch::nn::Linear(300, 300), world);
    State state{.model = ddp};
    if (const auto loaded = load_if_any(directory, state, world)) state.step = loaded->step;
    AsyncSaver saver(directory, world, {.save = {.retention = {.keep_last = 2}}, .copy_in_background = true});
    for (;;) {
      ++state.step;
      saver.wait_for_copy();
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& each : ddp.parameters()) each.fill_(state.step);
      }
      const bool is_first = !saver.wait();
      if (world.rank() == 0 && !is_first) {
        const std::int64_t on_disk = state.step - 1;
        if (::write(announced, &on_disk, sizeof on_disk) != sizeof on_disk) ::_exit(1);
      }
      saver.save(state);
    }
  });
}

// Whether the newest set is of that step, or of the one that was being written, and whole.
bool holds(const std::filesystem::path& directory, std::int64_t step) {
  bool is_right = true;
  run_worlds_or_throw(3, [&](const World& world) {
    Model ddp(torch::nn::Linear(300, 300), world);
    const Loaded loaded = load(directory, {.model = ddp}, world);
    bool is_same = loaded.step >= step && loaded.step <= step + 1;
    for (const torch::Tensor& each : ddp.parameters()) is_same = is_same && each.eq(loaded.step).all().item<bool>();
    if (!is_same) is_right = false;
  });
  return is_right;
}

}  // namespace

// fault: 5
// feature: H-03
TEST_CASE("a job is killed at a random moment of saves in the background, 20 times") {
  const TemporaryDirectory directory;
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t pid = ::fork();
    if (pid == 0) {
      train(directory.path(), write_end.get());
      ::_exit(2);
    }
    write_end.reset();
    std::int64_t step = 0, last = 0;
    REQUIRE(::read(read_end.get(), &step, sizeof step) == sizeof step);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));  // the moment is the point
    end_process(pid);
    do {
      last = step;
    } while (::read(read_end.get(), &step, sizeof step) == sizeof step);
    CHECK(exit_code_of_child([&] { return holds(directory.path(), last); }) == 0);
  }
}

}  // namespace async_kill_test
