// Ranks that have different numbers of batches: with join(), and what happens without it.
//   lockstep run --nproc-per-node 2 build/bin/uneven_inputs join|strict|reduce|leave|wait
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "examples/arguments.h"
#include "lockstep/lockstep.h"

namespace {

struct Batch {
  at::Tensor x, y;
};

// Rank 0 has 3 batches, and each rank two more than the one before it.
std::vector<Batch> batches_of(int rank) {
  const at::Tensor w = at::arange(1, 5, at::kFloat);
  std::vector<Batch> batches;
  for (int i = 0; i < 3 + 2 * rank; ++i) {
    const at::Tensor x = at::randn({8, 4});
    batches.push_back({x, x.matmul(w).unsqueeze(1)});
  }
  return batches;
}

struct Training {
  explicit Training(const lockstep::World& in) : world(in), ddp(torch::nn::Linear(4, 1), world) {}

  void step(const Batch& batch) {
    optimizer.zero_grad();
    at::mse_loss(ddp(batch.x), batch.y).backward();
    optimizer.step();

    // The program's own collective. A rank that has joined takes part, and adds nothing.
    double now = lockstep::is_joined() ? 0 : static_cast<double>(batch.x.size(0));
    world.all_reduce(now);
    samples += now;
  }

  const lockstep::World& world;
  lockstep::DistributedDataParallel<torch::nn::Linear> ddp;
  torch::optim::SGD optimizer{ddp.parameters(), 0.05};
  double samples = 0;
};

void train_joined(Training& training, const std::vector<Batch>& batches, const lockstep::UnevenOptions& options) {
  const auto& world = training.world;
  const lockstep::JoinReport report = lockstep::join(
      world, batches, [&](const Batch& batch) { training.step(batch); }, options);

  const auto steps = world.all_gather(
      at::tensor({static_cast<std::int64_t>(report.steps), static_cast<std::int64_t>(report.joined_steps)}));
  for (int rank = 0; rank < world.size(); ++rank) {
    lockstep::log_rank0(world, "rank %d: %ld steps with its own batches, %ld without", rank,
                        steps[rank][0].item<long>(), steps[rank][1].item<long>());
  }
  const std::string mine = lockstep::sha256_of(*training.ddp.module(), training.optimizer);
  const bool same = !world.first_difference(mine);
  lockstep::log_rank0(world, "trained on %.0f samples; all ranks have the same parameters: %s", training.samples,
                      same ? "yes" : "NO");
}

void train_without(Training& training, const std::vector<Batch>& batches, const std::string& then) {
  const auto& world = training.world;
  for (const Batch& batch : batches) training.step(batch);
  // Rank 0 is here while the others are still in backward().
  if (then == "reduce") {
    double loss = 0;
    world.all_reduce(loss);
  }
  if (then == "wait") {
    const at::Tensor done = at::zeros({1});
    if (world.rank() == 0) world.recv(done, 1);  // "I am done, too"
    if (world.rank() == 1) world.send(done, 0);
  }
}

void train(const std::string& mode) {
  const auto world = lockstep::init_process_group({.timeout = std::chrono::seconds(5)});
  lockstep::seed_all(1, world);
  const auto batches = batches_of(world.rank());
  Training training(world);
  if (mode == "join") return train_joined(training, batches, {});
  if (mode == "strict") return train_joined(training, batches, {.throw_on_early_termination = true});
  train_without(training, batches, mode);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(choice_at(1, argc, argv, {"join", "strict", "reduce", "leave", "wait"}));
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "uneven_inputs: Error{%s}: %s\n", std::string(to_string(error.kind())).c_str(), error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "uneven_inputs: %s\n", error.what());
    return 2;
  }
}
