// The same training step three times: with a process for each replica, with a thread for each replica, and with one
// model that has as many threads.
//   build/bin/data_parallel_vs_ddp [replicas] [steps]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <vector>

#include "examples/arguments.h"
#include "examples/models/cnn.h"
#include "examples/models/mlp.h"
#include "lockstep/lockstep.h"

namespace {

constexpr int kBatch = 128;  // images a step, over all replicas

struct Measured {
  double milliseconds = 0;  // of a step: the median
  at::Tensor gradient;      // of the first step, all parameters in one vector
};

template <class Replicas>
Measured measure(Replicas& replicas, const std::vector<at::Tensor>& parameters, const at::Tensor& x,
                 const at::Tensor& y, int steps) {
  torch::optim::SGD optimizer(parameters, 0.01);
  Measured measured;
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    at::cross_entropy_loss(replicas(x), y).backward();
    if (step == 0) {
      std::vector<at::Tensor> flat;
      for (const auto& parameter : parameters) flat.push_back(parameter.grad().flatten());
      measured.gradient = at::cat(flat);
    }
    optimizer.step();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  measured.milliseconds = times[times.size() / 2];
  return measured;
}

template <class Model>
Model make_model() {
  lockstep::seed_all(1);  // every model begins with the same weights
  return Model();
}

template <class Model>
void compare(const lockstep::World& world, const char* name, int steps) {
  lockstep::seed_all(2);
  const at::Tensor x = at::randn({kBatch, 1, 28, 28}), y = at::randint(10, {kBatch}, at::kLong);

  // A process for each replica: each rank computes its part of the batch.
  Model model = make_model<Model>();
  lockstep::DistributedDataParallel ddp(model, world);
  const auto mine = [&](const at::Tensor& batch) { return batch.chunk(world.size())[world.rank()]; };
  const Measured by_ddp = measure(ddp, ddp.parameters(), mine(x), mine(y), steps);

  // The other two need only one process. Rank 0 takes the cores of all ranks for them while the other ranks wait.
  if (world.rank() == 0) {
    const int threads = at::get_num_threads();
    at::set_num_threads(threads * world.size());
    Model scattered = make_model<Model>();
    lockstep::DataParallel data_parallel(scattered, {.replicas = world.size()}, make_model<Model>);
    const Measured by_threads = measure(data_parallel, scattered->parameters(), x, y, steps);
    Model alone = make_model<Model>();
    const Measured by_one = measure(alone, alone->parameters(), x, y, steps);
    at::set_num_threads(threads);

    const auto times = [&](const Measured& other) { return other.milliseconds / by_ddp.milliseconds; };
    std::printf("%s: %d images a step, %d replicas\n", name, kBatch, world.size());
    std::printf("  DistributedDataParallel %7.1f ms a step\n", by_ddp.milliseconds);
    std::printf("  DataParallel            %7.1f ms a step, %.2f times as long\n", by_threads.milliseconds,
                times(by_threads));
    std::printf("  one model               %7.1f ms a step, %.2f times as long\n", by_one.milliseconds, times(by_one));
    const lockstep::DataParallelStats& stats = data_parallel.stats();
    std::printf("  DataParallel moves %.1f KiB of outputs and %.1f KiB of gradients a step\n",
                static_cast<double>(stats.gathered_bytes) / 1024 / steps,
                static_cast<double>(stats.added_bytes) / 1024 / steps);
    // Not element by element: rounding may move the input of a ReLU across zero.
    const auto differs = [&](const Measured& other) {
      return (other.gradient - by_ddp.gradient).norm().item<double>() > 0.01 * by_ddp.gradient.norm().item<double>();
    };
    const char* different = kBatch % world.size() == 0 ? "DIFFER" : "differ, since the parts of the batch are unequal";
    std::printf("  the gradients of all three %s\n", differs(by_threads) || differs(by_one) ? different : "agree");
  }
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int replicas = number_at(1, argc, argv, 2);
    const int steps = number_at(2, argc, argv, 20);
    const auto train = [&](int) {
      const auto world = lockstep::init_process_group();
      compare<models::Cnn>(world, "cnn, 206,922 parameters", steps);
      compare<models::Mlp>(world, "mlp, 5,824,522 parameters", steps);
    };
    lockstep::spawn(argc, argv, train, {.nprocs = replicas});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel_vs_ddp: %s\n", error.what());
    return 1;
  }
}
