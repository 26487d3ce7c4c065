#include "examples/fashion_mnist/run_state.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <string>
#include <system_error>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/random_state.h"

namespace {

// What must not change between a run and its continuation.
std::map<std::string, std::string> identity_of(const Options& options) {
  return {{"model", options.model},
          {"batch_size", std::to_string(options.batch_size)},
          {"seed", std::to_string(options.seed)},
          {"shards", std::to_string(options.lockstep ? options.shards : 0)},
          {"accumulate", std::to_string(options.accumulate)},
          {"sync_batchnorm", options.sync_batchnorm ? "yes" : "no"}};
}

// What a checkpoint has that does not say it: it is older.
const std::map<std::string, std::string> kUnsaid{
    {"shards", "0"}, {"accumulate", "1"}, {"sync_batchnorm", "no"}, {"threads", "0"}, {"arithmetic", ""}};

}  // namespace

void prepare_output(const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (!failure && ::access(directory.c_str(), W_OK | X_OK) != 0) failure.assign(errno, std::generic_category());
  if (!failure) return;
  throw lockstep::Error(
      lockstep::ErrorKind::invalid_argument,
      "--out: cannot write to the directory " + directory.string() + ": " + failure.message() + "; name another");
}

void save_run(const std::filesystem::path& directory, const RunState& state, const Options& options,
              const torch::nn::Module& module, const torch::optim::Optimizer& optimizer, const lockstep::World& world) {
  const at::Tensor sums = at::tensor({state.loss_sum, static_cast<double>(state.samples)}, at::kDouble);
  world.group().all_reduce(sums, lockstep::ReduceOp::sum, {.name = "loss so far"});
  if (!world.is_main_rank()) return;
  lockstep::Checkpoint checkpoint;
  checkpoint.metadata = identity_of(options);
  checkpoint.metadata["step"] = std::to_string(state.step);
  checkpoint.metadata["epoch"] = std::to_string(state.epoch);
  checkpoint.metadata["batch"] = std::to_string(state.batch);
  checkpoint.metadata["threads"] = std::to_string(state.threads);
  checkpoint.metadata["arithmetic"] = state.arithmetic;
  checkpoint.tensors["loss_so_far"] = sums;
  lockstep::add_module(checkpoint, module);
  lockstep::add_optimizer(checkpoint, optimizer);
  lockstep::add_random_state(checkpoint);
  lockstep::save_checkpoint(lockstep::step_path(directory, static_cast<std::uint64_t>(state.step)), checkpoint,
                            {.keep_last = 3});
}

RunState load_run(const std::filesystem::path& directory, const Options& options, torch::nn::Module& module,
                  torch::optim::Optimizer& optimizer, const lockstep::World& world) {
  // Rank 0 chooses, so that all ranks read the same file.
  lockstep::Checkpoint checkpoint;
  const at::Tensor step = at::full({1}, -1, at::kLong);
  if (world.is_main_rank() && std::filesystem::is_directory(directory)) {
    if (auto latest = lockstep::latest_checkpoint(directory)) {
      step.fill_(static_cast<std::int64_t>(latest->step));
      checkpoint = std::move(latest->checkpoint);
    }
  }
  world.group().broadcast(step, 0, {.name = "step to resume from"});
  const auto chosen = step.item<std::int64_t>();
  if (chosen < 0) {
    throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                          "--resume: there is no checkpoint in " + directory.string() +
                              "; start without --resume, or name its directory with --out");
  }
  if (!world.is_main_rank())
    checkpoint = lockstep::load_checkpoint(lockstep::step_path(directory, static_cast<std::uint64_t>(chosen)));
  checkpoint.metadata.insert(kUnsaid.begin(), kUnsaid.end());
  for (const auto& [key, value] : identity_of(options)) {
    if (checkpoint.metadata[key] == value) continue;
    throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                          "--resume: the checkpoint in " + directory.string() + " was made with " + key + " " +
                              checkpoint.metadata[key] + ", this run has " + value);
  }
  lockstep::load_module(checkpoint, module);
  lockstep::load_optimizer(checkpoint, optimizer);
  lockstep::load_random_state(checkpoint);
  RunState state;
  const auto number = [&](const char* name) {
    return lockstep::checked_decimal(checkpoint.metadata[name], name, directory.string());
  };
  state.step = number("step");
  state.epoch = static_cast<int>(number("epoch"));
  state.batch = number("batch");
  state.threads = static_cast<int>(number("threads"));
  state.arithmetic = checkpoint.metadata["arithmetic"];
  if (world.is_main_rank()) {
    const at::Tensor& sums = checkpoint.tensors.at("loss_so_far");
    state.loss_sum = sums[0].item<double>();
    state.samples = static_cast<std::int64_t>(sums[1].item<double>());
  }
  return state;
}
