// How a TrainingRun resumes from a checkpoint: read, check, apply. file -> Checkpoint -> Resumption -> model,
// optimizer, position. Nothing changes until it is applied.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/training_run.h"

namespace lockstep::internal {

// Of the metadata and tensors of its files.
inline constexpr const char* kLossSoFar = "loss_so_far";
inline constexpr const char* kChoice = "choice.";  // begins the names of choices

// Error{invalid_argument}
[[noreturn]] void refuse_run(const std::string& why);
// For optimizers that leave ranks with different parameters.
void require_equal_parameters(const torch::optim::Optimizer& optimizer);
// Zeros and an empty text without lockstep mode.
LockstepState lockstep_state_of(DdpBase& ddp);

// The newest that rank 0 finds, so that all ranks read the same file. Collective; errors on all ranks.
Checkpoint newest_checkpoint(const ProcessGroup& group, const std::filesystem::path& directory);

struct Resumption {
  TrainingPosition position;
  double samples_a_step = 0;  // over all ranks, where the next step has to have as many; 0: nothing to compare with
  LockstepState mode;
  at::Tensor random;
  std::function<void()> load_module, load_optimizer;
};

// Checks a checkpoint against this run on this rank. Changes nothing but the checkpoint's metadata, which gets values
// that older programs did not record. Error{corrupt_data}, or Error{invalid_argument}: it is of another run, or not of
// a TrainingRun.
Resumption checked_resumption(Checkpoint& checkpoint, const TrainingRunOptions& options, const ProcessGroup& group,
                              torch::nn::Module& module, DdpBase& ddp, torch::optim::Optimizer& optimizer);

}  // namespace lockstep::internal
