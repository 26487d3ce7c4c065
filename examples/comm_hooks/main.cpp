// Trains the same model once with each communication hook, over TCP, and shows how much each one sends and how well it
// trains.
//   lockstep run --nproc-per-node 2 build/bin/comm_hooks [steps]
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/arguments.h"
#include "examples/comm_hooks/sent_bytes.h"
#include "examples/models/mlp.h"
#include "lockstep/lockstep.h"

namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.05);
}

struct Choice {
  std::string name;
  lockstep::CommHook hook = {};  // none: gradients are averaged as they are
  MakeOptimizer make_optimizer = sgd;
};

struct Images {
  lockstep::FashionMnist train = load(lockstep::FashionMnist::Split::train);
  lockstep::FashionMnist test = load(lockstep::FashionMnist::Split::test);

  static lockstep::FashionMnist load(lockstep::FashionMnist::Split split) {
    return lockstep::FashionMnist::load(lockstep::FashionMnist::default_data_directory(), split);
  }
};

void train(const Choice& choice, const Images& images, int steps, const lockstep::World& world) {
  lockstep::seed_all(1);
  models::Mlp model(std::vector<std::int64_t>{784, 512, 10});
  // Between two averagings of post-local SGD the ranks' parameters differ.
  lockstep::DistributedDataParallel ddp(model, world, {.compare_parameters_every = 0});
  if (choice.hook) ddp.register_comm_hook(choice.hook);
  const auto optimizer = choice.make_optimizer(ddp.parameters());

  lockstep::DistributedSampler sampler(images.train.size(), world, {.seed = 1});
  world.barrier();  // after which the wrapper's copy of the parameters has arrived
  const std::uint64_t sent_before = sent_bytes();
  int step = 0;
  for (auto& [x, y] : lockstep::loader(images.train, sampler, {.batch_size = 64, .workers = 1})) {
    if (step++ == steps) break;
    optimizer->zero_grad();
    at::cross_entropy_loss(ddp(x), y).backward();
    optimizer->step();
  }
  const auto sent = static_cast<double>(sent_bytes() - sent_before);

  const auto [loss, accuracy] = lockstep::evaluate(
      ddp, images.test, world, {.batch_size = 500, .workers = 1}, [](const at::Tensor& output, const at::Tensor& y) {
        return std::array{at::cross_entropy_loss(output, y).item<double>(),
                          output.argmax(1).eq(y).to(at::kDouble).mean().item<double>()};
      });
  lockstep::log_rank0(world, "%-15s %8.1f KiB a step   loss %.4f   accuracy %.4f", choice.name.c_str(),
                      sent / 1024 / steps, loss, accuracy);
}

std::vector<Choice> choices(const lockstep::World& world) {
  lockstep::PowerSgd power_sgd({.matrix_approximation_rank = 4, .start_power_sgd_iter = 10});

  // The first 20 steps average gradients; then each rank uses its own gradients, and every 4 steps all ranks
  // average their parameters.
  const auto state = std::make_shared<lockstep::PostLocalSgdState>();
  state->start_step = 20;
  const MakeOptimizer post_local_sgd = [&world](const std::vector<at::Tensor>& parameters) {
    using lockstep::PeriodicModelAverager, lockstep::PostLocalSgdOptimizer;
    return std::make_unique<PostLocalSgdOptimizer<torch::optim::SGD, PeriodicModelAverager>>(
        torch::optim::SGD(parameters, 0.05), PeriodicModelAverager(world, {.period = 4, .warmup_steps = 20}));
  };

  return {
      {"no hook"},
      {"fp16", lockstep::fp16_compress_hook()},
      {"bf16", lockstep::bf16_compress_hook()},
      {"8 bits", lockstep::quantize_8bit_hook()},
      {"PowerSGD", power_sgd.hook()},
      {"post-local SGD", lockstep::post_local_sgd_hook(state), post_local_sgd},
  };
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int steps = number_at(1, argc, argv, 200);
    // Ranks that share memory send nothing.
    const auto world = lockstep::init_process_group({.transport = "tcp"});
    const Images images;
    for (const Choice& choice : choices(world)) train(choice, images, steps, world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_hooks: %s\n", error.what());
    return 1;
  }
}
