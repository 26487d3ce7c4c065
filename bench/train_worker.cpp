// Trains a model step by step when it is told to; a Worker of bench_ddp.
//   bench_train_worker ddp|lockstep-mode|unconnected MODEL BATCH RANKS
// Takes "go STEPS". In "lockstep-mode" a step has as many shards as ranks. In "unconnected" every rank trains for
// itself, without DistributedDataParallel; the ranks only wait for each other before a block of steps.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "bench/serve.h"
#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::ProcessGroup;

struct Batch {
  at::Tensor x;
  at::Tensor y;
};

// One training step; returns its loss.
using Step = std::function<at::Tensor()>;

std::shared_ptr<torch::optim::SGD> optimizer_of(const std::vector<at::Tensor>& parameters) {
  return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
}

// `net`: a pointer to a module or to a DistributedDataParallel, or a module holder.
template <class Net>
at::Tensor backward_of(Net& net, const Batch& batch) {
  const at::Tensor loss = at::cross_entropy_loss(net->forward(batch.x).flatten(0, -2), batch.y.flatten());
  loss.backward();
  return loss;
}

template <class Net>
Step step_of(Net net, const std::vector<at::Tensor>& parameters, const Batch& batch) {
  return [net, optimizer = optimizer_of(parameters), batch]() mutable {
    optimizer->zero_grad();
    const at::Tensor loss = backward_of(net, batch);
    optimizer->step();
    return loss;
  };
}

template <class Ddp>
Step step_in_shards(std::shared_ptr<Ddp> ddp, const Batch& batch) {
  return [ddp, optimizer = optimizer_of(ddp->parameters()), batch] {
    const double loss =
        ddp->for_each_shard([&](lockstep::Shard) { return backward_of(*ddp, batch).template item<double>(); });
    optimizer->step();
    return at::scalar_tensor(loss);
  };
}

template <class Model>
Step training(Model model, const Batch& batch, const ProcessGroup& group, const std::string& mode) {
  if (mode == "unconnected") return step_of(model, model->parameters(), batch);
  lockstep::DdpOptions options;
  if (mode == "lockstep-mode") options.lockstep.shards = group.size();
  auto ddp = std::make_shared<lockstep::DistributedDataParallel<Model>>(model, group, options);
  return mode == "lockstep-mode" ? step_in_shards(ddp, batch) : step_of(ddp, ddp->parameters(), batch);
}

Step training_of(const std::string& name, std::int64_t size, const ProcessGroup& group, const std::string& mode) {
  torch::manual_seed(0);
  // Every rank has the same model and its own data.
  const auto own_data = [&] { torch::manual_seed(1 + group.rank()); };
  if (name == "resnet18") {
    models::ResNet18 model(10);
    own_data();
    return training(model, {at::randn({size, 3, 28, 28}), at::randint(10, {size}, at::kLong)}, group, mode);
  }
  if (name == "mlp") {
    models::Mlp model;
    own_data();
    return training(model, {at::randn({size, 784}), at::randint(10, {size}, at::kLong)}, group, mode);
  }
  if (name == "gpt") {
    models::Gpt model;
    own_data();
    const at::Tensor tokens = at::randint(65, {size, 129}, at::kLong);
    const Batch batch{tokens.slice(1, 0, 128).contiguous(), tokens.slice(1, 1, 129).contiguous()};
    return training(model, batch, group, mode);
  }
  throw Error(ErrorKind::invalid_argument, "there is no model '" + name + "'; there are resnet18, mlp and gpt");
}

std::vector<double> measure(const Step& step, const ProcessGroup& group, std::int64_t steps) {
  std::vector<double> seconds;
  group.barrier();
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor loss = step();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (!std::isfinite(loss.item<double>())) throw Error(ErrorKind::internal, "the loss is no longer finite");
  }
  return seconds;
}

void run_rank(char** argv) {
  const auto world = lockstep::init_process_group();
  at::set_num_threads(1);
  const Step step = training_of(argv[2], std::atoll(argv[3]), world.group(), argv[1]);
  bench::serve(world.group(), "go", bench::OfRanks::mean,
               [&](std::int64_t steps, std::int64_t, std::int64_t) { return measure(step, world.group(), steps); });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string mode = argc == 5 ? argv[1] : "";
    if (mode != "ddp" && mode != "lockstep-mode" && mode != "unconnected") {
      throw Error(ErrorKind::invalid_argument,
                  "usage: bench_train_worker ddp|lockstep-mode|unconnected MODEL BATCH RANKS");
    }
    lockstep::spawn(argc, argv, [&](int) { run_rank(argv); }, {.nprocs = std::atoi(argv[4]), .threads_per_rank = 1});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train_worker: %s\n", error.what());
    return 1;
  }
}
