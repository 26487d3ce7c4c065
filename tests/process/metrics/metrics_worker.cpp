// A rank of a small training that somebody watches: metrics_worker DIRECTORY. It goes on until DIRECTORY/stop is there.
// Rank 1 begins its backward late. After step 5 a checkpoint is saved. While DIRECTORY/hang is there, rank 1 waits
// before its next step.
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include "lockstep/base/observe/report_value.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/save.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

using namespace lockstep;

constexpr auto kLate = std::chrono::milliseconds(10);
constexpr std::int64_t kSave = 5;

struct Noise {
  std::size_t size() const { return 4096; }
  at::Tensor get_batch(std::span<const std::int64_t> indices) const {
    return at::rand({static_cast<std::int64_t>(indices.size()), 16});
  }
};

// The same answer on all ranks.
bool is_there(const World& world, const std::filesystem::path& path) {
  double there = world.rank() == 0 && std::filesystem::exists(path) ? 1 : 0;
  world.all_reduce(there);
  return there != 0;
}

void train(const World& world, const std::filesystem::path& directory) {
  torch::nn::Linear model(16, 16);
  DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  const Noise noise;
  DistributedSampler sampler(noise.size(), world.size(), world.rank());
  std::int64_t step = 0;
  for (int epoch = 0; !is_there(world, directory / "stop"); ++epoch) {
    sampler.set_epoch(epoch);
    for (const at::Tensor& batch : loader(noise, sampler, {.batch_size = 8, .workers = 0})) {
      while (world.rank() == 1 && std::filesystem::exists(directory / "hang")) std::this_thread::sleep_for(kLate);
      optimizer.zero_grad();
      const at::Tensor loss = ddp(batch).pow(2).mean();
      if (world.rank() == 1) std::this_thread::sleep_for(kLate);
      loss.backward();
      optimizer.step();
      report_value("loss", loss.item<double>());
      report_value("learning_rate", 0.01);
      if (++step == kSave) {
        save(directory / "checkpoints", State{.model = ddp, .optimizer = optimizer, .step = step}, world);
      }
      if (is_there(world, directory / "stop")) return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    train(init_process_group(), argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "metrics_worker: %s\n", error.what());
    return 3;
  }
}
