// Clips, shards and averages with Lockstep as reference.py does with PyTorch, and compares.
//   parity_optim_worker <reference file>
// starts as many ranks as the file has. Exits with 1 and says what differs, or with 0 and says by how little.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <string>

#include "examples/models/toy.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/job/launch/spawn.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/ddp/comm_hooks/post_local_sgd.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/optim/clip_gradients.h"
#include "lockstep/train/optim/model_averager.h"
#include "lockstep/train/optim/post_local_sgd_optimizer.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/parity/support.h"

namespace {

using lockstep::Checkpoint;
using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::World;
using torch::optim::SGD;
using torch::optim::SGDOptions;

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorKind::internal, text); }

// The difference, which must be within the tolerance.
double compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected,
               double tolerance = parity::kTolerance) {
  const double distance = parity::difference(got, expected);
  if (!(distance <= tolerance)) fail(fmt::format("{} differs from PyTorch's by {:g}", what, distance));
  return distance;
}

struct Run {
  World world;
  Checkpoint file;
  models::Toy model;

  std::vector<at::Tensor> parameters() const { return model->parameters(); }
  // Trains with the step that the case is about and compares after each one.
  double train(
      const std::function<at::Tensor(const at::Tensor&)>& forward, torch::optim::Optimizer& optimizer,
      const std::function<void()>& after_backward = [] {}) const {
    const at::Tensor x = parity::tensor_of(file, "x")[world.rank()], y = parity::tensor_of(file, "y")[world.rank()];
    double worst = 0;
    for (std::int64_t step = 0; step < x.size(0); ++step) {
      optimizer.zero_grad();
      parity::mean_squared_error(forward(x[step]), y[step]).backward();
      after_backward();
      optimizer.step();
      for (const auto& item : model->named_parameters()) {
        const std::string name = fmt::format("{}.{}/{}", step, world.rank(), item.key());
        worst = std::max(worst, compare(name, item.value(), parity::tensor_of(file, name)));
      }
    }
    return worst;
  }
};

double clip(const Run& run) {
  std::vector<at::Tensor> gradients;
  while (run.file.tensors.contains(fmt::format("gradient/{}", gradients.size()))) {
    gradients.push_back(parity::tensor_of(run.file, fmt::format("gradient/{}", gradients.size())));
  }
  const auto with_gradients = [&] {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& gradient : gradients) {
      parameters.push_back(at::zeros(gradient.sizes()).set_requires_grad(true));
      parameters.back().mutable_grad() = gradient.clone();
    }
    return parameters;
  };
  double worst = 0;
  for (const std::string norm_type : {"1.0", "2.0", "3.0", "inf"}) {
    const lockstep::ClipOptions options{.norm_type = std::stod(norm_type), .error_if_nonfinite = true};
    const double expected = parity::tensor_of(run.file, "norm/" + norm_type).item<double>();
    const auto whole = with_gradients(), spread = with_gradients();
    std::vector<at::Tensor> mine;
    for (std::size_t i = 0; i < spread.size(); ++i) {
      if (static_cast<int>(i) % run.world.size() == run.world.rank()) mine.push_back(spread[i]);
    }
    const double norm = lockstep::clip_grad_norm(whole, 1.5, options);
    if (norm != expected) fail(fmt::format("the norm of order {} is {}, PyTorch's is {}", norm_type, norm, expected));
    const double of_all = lockstep::clip_grad_norm(mine, 1.5, run.world.group(), options);
    if (!(std::abs(of_all - expected) <= 1e-6 * expected)) {
      fail(fmt::format("the norm of order {} of all ranks is {}, PyTorch's is {}", norm_type, of_all, expected));
    }
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::string name = fmt::format("clipped/{}/{}", norm_type, i);
      compare(name, whole[i].grad(), parity::tensor_of(run.file, name), /*tolerance=*/0);
      if (static_cast<int>(i) % run.world.size() != run.world.rank()) continue;
      worst = std::max(worst, compare(name, spread[i].grad(), parity::tensor_of(run.file, name)));
    }
  }
  return worst;
}

template <class Optimizer, class Options>
double zero(Run& run, const Options& options) {
  lockstep::DistributedDataParallel ddp(run.model, run.world.group());
  lockstep::ZeroRedundancyOptimizer<Optimizer> optimizer(ddp.parameters(), run.world.group(), options);
  const auto parameters = run.model->named_parameters();
  for (std::size_t rank = 0; rank < optimizer.parts().size(); ++rank) {
    for (const std::size_t index : optimizer.parts()[rank][0]) {
      const auto owner = parity::tensor_of(run.file, "owner/" + parameters[index].key()).item<std::int64_t>();
      if (owner == static_cast<std::int64_t>(rank)) continue;
      fail(fmt::format("rank {} updates {}, with PyTorch rank {} does", rank, parameters[index].key(), owner));
    }
  }
  return run.train([&](const at::Tensor& x) { return ddp(x); }, optimizer);
}

double periodic(Run& run) {
  lockstep::PostLocalSgdOptimizer optimizer(
      SGD(run.parameters(), SGDOptions(0.05).momentum(0.9)),
      lockstep::PeriodicModelAverager(run.world.group(), {.period = 3, .warmup_steps = 2}));
  return run.train([&](const at::Tensor& x) { return run.model(x); }, optimizer);
}

double hierarchical(Run& run) {
  const int ranks = run.world.size();
  lockstep::HierarchicalModelAverager averager(
      run.world.group(),
      {.levels = {{.period = 2, .group_size = ranks / 2}, {.period = 4, .group_size = ranks}}, .warmup_steps = 1});
  lockstep::PostLocalSgdOptimizer optimizer(SGD(run.parameters(), SGDOptions(0.05).momentum(0.9)), std::move(averager));
  return run.train([&](const at::Tensor& x) { return run.model(x); }, optimizer);
}

// All gradients are one bucket.
double post_local(Run& run) {
  const auto& group = run.world.group();
  const auto state = std::make_shared<lockstep::PostLocalSgdState>(
      lockstep::PostLocalSgdState{.start_step = 2, .subgroup = group.split(group.rank() / (group.size() / 2))});
  const lockstep::CommHook hook = lockstep::post_local_sgd_hook(state);
  lockstep::PostLocalSgdOptimizer optimizer(SGD(run.parameters(), SGDOptions(0.05).momentum(0.9)),
                                            lockstep::PeriodicModelAverager(group, {.period = 3, .warmup_steps = 2}));
  const auto average = [&] {
    const auto parameters = run.parameters();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad().reshape({-1}));
    lockstep::GradBucket bucket(0, true, at::cat(gradients), parameters, std::vector<std::string>(parameters.size()));
    bucket.set_buffer(hook(bucket, group)());
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad().copy_(bucket.gradients()[i]);
  };
  return run.train([&](const at::Tensor& x) { return run.model(x); }, optimizer, average);
}

double compare_case(const std::string& name, Run& run) {
  if (name == "clip") return clip(run);
  lockstep::load_module(run.file, *run.model, "initial/");
  if (name == "zero_adam") return zero<torch::optim::Adam>(run, torch::optim::AdamOptions(0.01));
  if (name == "zero_momentum") return zero<SGD>(run, SGDOptions(0.05).momentum(0.9));
  if (name == "periodic") return periodic(run);
  if (name == "hierarchical") return hierarchical(run);
  if (name == "post_local") return post_local(run);
  throw Error(ErrorKind::invalid_argument, "there is no case " + name);
}

void work(const std::string& name, const std::string& path) {
  at::set_num_threads(1);
  Run run{.world = lockstep::init_process_group(),
          .file = lockstep::load_checkpoint(path, lockstep::Integrity::if_present),
          .model = models::Toy()};
  const double worst = compare_case(name, run);
  if (run.world.is_main_rank())
    std::cout << fmt::format("{} on {} ranks: within {:.2g}\n", name, run.world.size(), worst);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: parity_optim_worker <reference file>\n";
    return 2;
  }
  const std::string path = argv[1];
  try {
    const lockstep::SafetensorsReader file(path, lockstep::Integrity::if_present);
    const auto& metadata = file.header().metadata;
    lockstep::spawn(argc, argv, [&](int) { work(metadata.at("case"), path); },
                    {.nprocs = std::stoi(metadata.at("ranks")), .threads_per_rank = 1});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
