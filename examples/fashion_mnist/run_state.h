// Where a run stands: everything that a resumed run needs, in one checkpoint file.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "examples/fashion_mnist/options.h"
#include "lockstep/group/world.h"

// The next batch to train is number `batch` of epoch `epoch`, after `step` steps in all.
struct RunState {
  std::int64_t step = 0;
  int epoch = 0;
  std::int64_t batch = 0;
  double loss_sum = 0;  // of the samples in this epoch so far; over all ranks together the loss is loss_sum / samples
  std::int64_t samples = 0;
  // Of lockstep::LockstepState; 0 and empty without lockstep mode, and where the checkpoint does not say.
  int threads = 0;
  std::string arithmetic = {};
};

// For rank 0, before any work is done that could not be kept. Throws lockstep::Error if `directory` cannot be made or
// written.
void prepare_output(const std::filesystem::path& directory);

// Collective. Rank 0 writes the file, atomically.
void save_run(const std::filesystem::path& directory, const RunState& state, const Options& options,
              const torch::nn::Module& module, const torch::optim::Optimizer& optimizer, const lockstep::World& world);

// All ranks read the newest undamaged checkpoint that rank 0 finds. Throws lockstep::Error if there is none, or if it
// was made with another model, batch size, seed, number of shards or microbatches, or kind of batch norm.
RunState load_run(const std::filesystem::path& directory, const Options& options, torch::nn::Module& module,
                  torch::optim::Optimizer& optimizer, const lockstep::World& world);
