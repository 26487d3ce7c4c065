// Trains to the end even if ranks fail: it saves a snapshot after each epoch, and when it is started again it continues
// from there, with any number of ranks. If a rank dies, the launcher starts all of them again:
//   lockstep run --nproc-per-node 4 --max-restarts 3 build/bin/elastic_ddp 100 out/elastic
// With a third number, the last rank kills itself at the beginning of that epoch, once, to show what happens then.
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "examples/arguments.h"
#include "examples/models/toy.h"
#include "lockstep/lockstep.h"

namespace {

struct Samples {
  at::Tensor x = at::randn({960, 10}), y = x.matmul(at::randn({10, 5}));

  std::size_t size() const { return static_cast<std::size_t>(x.size(0)); }
  std::pair<at::Tensor, at::Tensor> get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor chosen = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
    return {x.index_select(0, chosen), y.index_select(0, chosen)};
  }
};

void train(int epochs, const std::string& directory, int fatal_epoch) {
  const auto world = lockstep::init_process_group();
  lockstep::seed_all(0);
  const Samples samples;
  models::Toy model;
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
  lockstep::TrainingRun run(world, {.directory = directory});
  const auto& at = run.resume_if_any(ddp, optimizer);
  const char* variable = std::getenv("RESTART_COUNT");
  const std::string restarts = variable == nullptr ? "(not set)" : variable;
  log_rank0(world, "%d ranks, RESTART_COUNT %s, begin in epoch %d after step %ld", world.size(), restarts.c_str(),
            at.epoch, at.step);

  const auto told_to_stop = [&] { return world.stop_requested(); };
  const std::size_t batch_size = lockstep::BatchSize::global(96).local(world.size());
  lockstep::DistributedSampler sampler(samples.size(), world);
  while (at.epoch < epochs) {
    const bool is_victim = at.epoch == fatal_epoch && world.rank() == world.size() - 1;
    if (is_victim && restarts == "0") std::raise(SIGKILL);
    sampler.set_epoch(at.epoch);
    for (auto& [x, y] : lockstep::loader(
             samples, sampler,
             {.batch_size = batch_size, .workers = 0, .first_batch = at.batch, .stop_when = told_to_stop})) {
      optimizer.zero_grad();
      const at::Tensor loss = at::mse_loss(ddp(x), y);
      loss.backward();
      optimizer.step();
      run.add_step(loss.item<double>(), x.size(0), ddp, optimizer);
    }
    if (told_to_stop()) break;
    log_rank0(world, "epoch %d: loss %.4f", at.epoch, run.mean_loss());
    run.position.begin_next_epoch();
    run.save(ddp, optimizer);
  }
  if (at.epoch < epochs) {
    run.save(ddp, optimizer);
    return log_rank0(world, "stopped after step %ld; the next start continues", at.step);
  }
  log_rank0(world, "SHA-256 of the run: %s", lockstep::sha256_of(*model, optimizer).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(number_at(1, argc, argv, 10), argc > 2 ? argv[2] : "out", number_at(3, argc, argv, -1, 0));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_ddp: %s\n", error.what());
    return 1;
  }
}
