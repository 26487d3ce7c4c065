// A training in which rank 1 is late in one step: it computes for longer than the others, or it is stopped.
//   lockstep run --nproc-per-node 2 build/bin/slow_rank [seconds|stop] [timeout in seconds]
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>

#include "examples/arguments.h"
#include "lockstep/lockstep.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 10, kLateStep = 5;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// 0 seconds: stopped.
void be_late(double seconds) {
  if (seconds == 0) {
    std::raise(SIGSTOP);
    return;
  }
  const auto start = Clock::now();
  const at::Tensor a = at::randn({64, 64});
  while (seconds_since(start) < seconds) a.matmul(a);
}

void train(double late_s, double timeout_s) {
  const auto world = lockstep::init_process_group(
      {.timeout = std::chrono::duration_cast<lockstep::Duration>(std::chrono::duration<double>(timeout_s))});
  lockstep::seed_all(1, world);
  lockstep::DistributedDataParallel ddp(torch::nn::Linear(16, 1), world);
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  world.barrier();

  const auto start = Clock::now();
  for (int step = 0; step < kSteps; ++step) {
    if (world.rank() == 1 && step == kLateStep) be_late(late_s);
    optimizer.zero_grad();
    ddp(at::randn({32, 16})).pow(2).mean().backward();
    optimizer.step();
  }

  // The rank that all others wait for is the one that waits least.
  const auto everyone =
      world.all_gather(at::tensor({seconds_since(start), ddp.stats().communication_seconds}, at::kDouble));
  for (int rank = 0; rank < world.size(); ++rank) {
    lockstep::log_rank0(world, "rank %d: %d steps in %.1f s, of which %.1f s in communication", rank, kSteps,
                        everyone[rank][0].item<double>(), everyone[rank][1].item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool stops = argc > 1 && argv[1] == std::string_view("stop");
    train(stops ? 0 : number_at(1, argc, argv, 2.0, 0.001), number_at(2, argc, argv, 1800.0, 0.001));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slow_rank: %s\n", error.what());
    return 1;
  }
}
