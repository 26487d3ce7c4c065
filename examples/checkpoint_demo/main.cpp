// Saving and loading a model in a job of several ranks: by hand, where rank 0 writes a file and all ranks read it, and
// with save() and load(), which keep the whole training.
//   build/bin/checkpoint_demo [ranks]
#include <ATen/ATen.h>
#include <stdlib.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "examples/arguments.h"
#include "examples/models/toy.h"
#include "lockstep/lockstep.h"

namespace fs = std::filesystem;

namespace {

using Ddp = lockstep::DistributedDataParallel<models::Toy>;

// An empty folder that all ranks know by the same name. On several hosts it has to be one that they share.
fs::path make_folder(const lockstep::World& world) {
  std::string name = fs::temp_directory_path() / "checkpoint_demo_XXXXXX";
  if (world.is_main_rank() && mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  return world.broadcast_object(name);
}

void train_one_step(Ddp& ddp, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  const at::Tensor outputs = ddp(at::randn({20, 10}));
  const at::Tensor labels = at::randn({20, 5});
  torch::nn::MSELoss()(outputs, labels).backward();
  optimizer.step();
}

// As if this rank were a new process, with different parameters.
void forget(Ddp& ddp) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : ddp.parameters()) parameter.fill_(ddp.group().rank());
}

const char* who_holds(const lockstep::World& world, const Ddp& ddp, const torch::optim::Optimizer& optimizer,
                      const std::string& saved) {
  int different = lockstep::sha256_of(*ddp.module(), optimizer) == saved ? 0 : 1;
  world.all_reduce(different);
  return different == 0 ? "hold what rank 0 has saved" : "DO NOT hold what rank 0 has saved";
}

void demo_checkpoint(int rank) {
  std::printf("Running DDP checkpoint example on rank %d.\n", rank);
  const auto world = lockstep::init_process_group();
  models::Toy model;
  Ddp ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
  const fs::path folder = make_folder(world);
  const fs::path file = folder / "model.checkpoint";
  const std::string saved = world.broadcast_object(lockstep::sha256_of(*model, optimizer));

  // All ranks hold the same parameters, so one of them saves.
  if (world.is_main_rank()) {
    lockstep::Checkpoint checkpoint;
    lockstep::add_module(checkpoint, *model, "");
    lockstep::save_torch_file(file, checkpoint.tensors);
  }
  forget(ddp);
  world.barrier();  // nobody loads before the file is there
  const lockstep::DeviceMap map_location{{"cuda:0", "cuda:" + std::to_string(rank)}};
  lockstep::load_module(lockstep::load_torch_file(file, map_location), *model, "");
  log_rank0(world, "by hand: all %d ranks %s", world.size(), who_holds(world, ddp, optimizer, saved));

  train_one_step(ddp, optimizer);
  // No barrier: backward() has averaged the gradients of all ranks, so all have loaded.
  if (world.is_main_rank()) fs::remove(file);

  const std::string trained = world.broadcast_object(lockstep::sha256_of(*model, optimizer));
  lockstep::save(folder, {.model = ddp, .optimizer = optimizer, .step = 1}, world);
  train_one_step(ddp, optimizer);  // changes parameters and momentum
  const auto loaded = lockstep::load(folder, {.model = ddp, .optimizer = optimizer}, world);
  log_rank0(world, "save() and load(): step %ld, all %d ranks %s", loaded.step, world.size(),
            who_holds(world, ddp, optimizer, trained));
  if (world.is_main_rank()) fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int ranks = number_at(1, argc, argv, 2);
    lockstep::spawn(argc, argv, demo_checkpoint, {.nprocs = ranks});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_demo: %s\n", error.what());
    return 1;
  }
}
