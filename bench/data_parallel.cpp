// Compares DataParallel (one process, K replicas in threads) with DistributedDataParallel (K processes) on the same
// training steps, and says what the one copies that the other does not:
//   build/bin/bench_data_parallel [samples [steps]]
// K is 2 and 4. The model is a wide MLP; all K parts of a batch together have `samples` samples. One thread for each
// part.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "examples/models/mlp.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/parallel/data_parallel.h"

namespace {

constexpr int kWarmUpSteps = 3;

// The median of the steps, in milliseconds.
template <class Forward>
double step_ms(Forward& forward, const std::vector<at::Tensor>& parameters, std::int64_t samples, int steps) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  const at::Tensor x = at::randn({samples, 784});
  const at::Tensor y = at::randint(10, {samples}, at::kLong);
  std::vector<double> milliseconds;
  for (int step = 0; step < kWarmUpSteps + steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    at::cross_entropy_loss(forward(x), y).backward();
    optimizer.step();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (step >= kWarmUpSteps) milliseconds.push_back(took.count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds[milliseconds.size() / 2];
}

void run_rank(int parts, std::int64_t samples, int steps) {
  const auto world = lockstep::init_process_group();
  models::Mlp model;
  lockstep::DistributedDataParallel ddp(model, world.group());
  const double milliseconds = step_ms(ddp, ddp.parameters(), samples / parts, steps);
  if (world.is_main_rank())
    std::printf("DistributedDataParallel, %d processes: %8.2f ms a step\n", parts, milliseconds);
}

void run_replicas(int parts, std::int64_t samples, int steps) {
  at::set_num_threads(parts);
  models::Mlp model;
  lockstep::DataParallel parallel(model, {.replicas = parts}, [] { return models::Mlp(); });
  const double milliseconds = step_ms(parallel, model->parameters(), samples, steps);
  const auto& stats = parallel.stats();
  const auto mib_per_step = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(stats.forwards) / (1 << 20);
  };
  std::printf(
      "DataParallel, %d replicas:             %8.2f ms a step; in each, one process copies %.3f MiB of buffers "
      "and %.3f MiB of outputs, adds up %.1f MiB of gradients, and steps the optimizer\n",
      parts, milliseconds, mib_per_step(stats.replicated_bytes), mib_per_step(stats.gathered_bytes),
      mib_per_step(stats.added_bytes));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::int64_t samples = argc > 1 ? std::atoll(argv[1]) : 128;
    const int steps = argc > 2 ? std::atoi(argv[2]) : 30;
    for (const int parts : {2, 4}) {
      lockstep::spawn(argc, argv, [&](int) { run_rank(parts, samples, steps); },
                      {.nprocs = parts, .name = std::to_string(parts), .threads_per_rank = 1});
    }
    for (const int parts : {2, 4}) run_replicas(parts, samples, steps);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_data_parallel: %s\n", error.what());
    return 1;
  }
}
