// A rank that saves and loads a state of so many MiB with Lockstep: checkpoint_worker DIRECTORY MIB. Rank 0 prints what
// it took as JSON: seconds of save(), of load(), and how long AsyncSaver::save() kept the training, in its first save
// and in its second one. With a copy in the background: how long the training stood still, and how much longer its
// arithmetic took than alone.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/checkpoint/async_saver.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/group/world.h"

namespace {

constexpr int kWidth = 2048;  // 16 MiB of weights a layer

struct Layers : torch::nn::Module {
  explicit Layers(int mebibytes) {
    for (int i = 0; i < std::max(1, mebibytes / 16); ++i) {
      const auto layer = torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
      register_module("layer" + std::to_string(i), layer);
    }
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// From when all are there until all are done.
template <class Action>
double timed(const lockstep::World& world, Action action) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  action();
  world.barrier();
  return seconds_since(start);
}

// What a step of a training does meanwhile: a second or more of a product of matrices.
void arithmetic() {
  const torch::NoGradGuard no_grad;
  const torch::Tensor left = torch::rand({1024, 1024});
  torch::Tensor product = left;
  for (int i = 0; i < 40; ++i) product = torch::mm(left, product).div_(512);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: %s DIRECTORY MIB\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path directory = arguments[1];
  const lockstep::World world = lockstep::init_process_group();
  const auto layers = std::make_shared<Layers>(std::atoi(arguments[2]));
  lockstep::DistributedDataParallel<std::shared_ptr<Layers>> ddp(layers, world);
  lockstep::State state{.model = ddp, .step = 1};
  const double save = timed(world, [&] { lockstep::save(directory / "sync", state, world); });
  const double load = timed(world, [&] { lockstep::load(directory / "sync", state, world); });
  lockstep::AsyncSaver saver(directory / "async", world);
  const double stall = timed(world, [&] { saver.save(state); });
  const double rest = timed(world, [&] { saver.wait(); });
  const double second_stall = timed(world, [&] { saver.save(state); });
  saver.wait();

  const double alone = timed(world, arithmetic);
  lockstep::AsyncSaver behind(directory / "behind", world, {.copy_in_background = true});
  behind.save(state);  // its memory is there from here on
  behind.wait();
  double behind_stall = timed(world, [&] { behind.save(state); });
  const double beside = timed(world, arithmetic);
  behind_stall += timed(world, [&] { behind.wait_for_copy(); });
  behind.wait();
  if (world.is_main_rank()) {
    std::printf("{\"save\": %.4f, \"load\": %.4f, \"async_stall\": %.4f, \"async\": %.4f, \"async_stall_again\": %.4f, "
                "\"background_stall\": %.4f, \"background_slowdown\": %.4f}\n",
                save, load, stall, stall + rest, second_stall, behind_stall, beside - alone);
  }
  return 0;
}
