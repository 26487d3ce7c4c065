// A rank of a training in which one of them is slow: skew_worker DIRECTORY STEPS PART MILLISECONDS RANK...
// The ranks take turns: in each 20 steps another one of the list is busy for so long, in its data, forward, backward or
// optimizer. "crash" as PART: the rank ends with code 7 in the middle of the first attempt. Rank 0 prints the text
// about stragglers at the end.
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/training_run.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kTurn = 20;

struct Slowness {
  std::string_view part;
  Duration time;
  std::vector<int> ranks;

  bool applies(const World& world, std::int64_t step) const {
    const auto turn = static_cast<std::size_t>(step / kTurn) % ranks.size();
    return ranks[turn] == world.rank();
  }
  void slow_down(const World& world, std::int64_t step, std::string_view in) const {
    if (in != part || !applies(world, step)) return;
    const TimePoint until = steady_clock().now() + time;
    while (steady_clock().now() < until) {  // busy: it computes, as far as others can tell
    }
  }
  void crash(const World& world, std::int64_t step) const {
    const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const bool is_first = attempt != nullptr && std::string_view(attempt) == "0";
    if (part == "crash" && is_first && step == kTurn / 2 && applies(world, step)) std::_Exit(7);
  }
};

void train(const World& world, const std::string& directory, std::int64_t steps, const Slowness& slow) {
  torch::nn::Linear model(64, 64);
  // A comparison takes the wait for a late rank away from the buckets behind it.
  DistributedDataParallel ddp(model, world, {.compare_parameters_every = 0});
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  TrainingRun run(world, {.directory = directory});
  run.start_anew();
  std::int64_t step = 0;
  model->weight.register_hook([&](const at::Tensor& gradient) {
    slow.slow_down(world, step, "backward");
    return gradient;
  });
  for (; step < steps; ++step) {
    slow.slow_down(world, step, "data");
    const at::Tensor x = at::rand({8, 64});
    optimizer.zero_grad();
    const at::Tensor y = ddp(x);
    slow.slow_down(world, step, "forward");
    const at::Tensor loss = y.pow(2).mean();
    loss.backward();
    optimizer.step();
    slow.slow_down(world, step, "optimizer");
    slow.crash(world, step);
    run.add_step(loss.item<double>(), x.size(0), ddp, optimizer);
  }
  run.save(ddp, optimizer);
  if (world.rank() == 0) std::printf("straggler:%s\n", run.straggler_text().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  std::vector<int> ranks;
  for (int i = 5; i < argc; ++i) ranks.push_back(std::atoi(argv[i]));
  try {
    const World world = init_process_group();
    train(world, argv[1], std::atoll(argv[2]), {argv[3], std::chrono::milliseconds(std::atoi(argv[4])), ranks});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "skew_worker: %s\n", error.what());
    return 1;
  }
}
