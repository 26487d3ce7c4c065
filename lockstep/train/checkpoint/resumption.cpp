#include "lockstep/train/checkpoint/resumption.h"

#include <torch/optim/optimizer.h>

#include <climits>
#include <cstdint>
#include <map>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {
namespace {

void require_same(const std::filesystem::path& directory, const std::string& name, const std::string& then,
                  const std::string& now) {
  if (then == now) return;
  refuse_run("the checkpoint in " + directory.string() + " was made with " + name + " " + then + ", this run has " +
             now);
}

// Of the metadata. Error{corrupt_data}: it is missing, negative or greater than `most`.
std::int64_t number_in(const Checkpoint& checkpoint, const std::string& name, std::int64_t most, const Origin& origin) {
  const auto found = checkpoint.metadata.find(name);
  const std::int64_t value = checked_decimal(found == checkpoint.metadata.end() ? "" : found->second, name, origin);
  return checked_between(value, std::int64_t{0}, most, name, origin);
}

// Error{corrupt_data} or Error{invalid_argument} if it is not of a TrainingRun.
TrainingPosition position_in(const Checkpoint& checkpoint, const std::filesystem::path& directory) {
  const std::string where = directory.string();
  const Origin origin{where};
  const auto sums = checkpoint.tensors.find(kLossSoFar);
  if (sums == checkpoint.tensors.end() || sums->second.numel() != 2 || sums->second.scalar_type() != at::kDouble) {
    refuse_run("the checkpoint in " + where + " has no valid '" + kLossSoFar +
               "', two numbers that every TrainingRun stores");
  }
  const auto* numbers = sums->second.const_data_ptr<double>();
  constexpr double kMostSamples = 1e15;
  if (!(numbers[1] >= 0 && numbers[1] <= kMostSamples)) {
    throw_corrupt(origin, fmt::format("invalid number of samples in an epoch: {}", numbers[1]));
  }
  return {.step = number_in(checkpoint, "step", INT64_MAX, origin),
          .epoch = static_cast<int>(number_in(checkpoint, "epoch", INT_MAX, origin)),
          .batch = number_in(checkpoint, "batch", INT64_MAX, origin),
          .loss_sum = numbers[0],
          .samples = static_cast<std::int64_t>(numbers[1])};
}

void require_choices(const TrainingRunOptions& options, std::map<std::string, std::string>& told) {
  for (const auto& [name, value] : options.untold) told.insert({kChoice + name, value});
  for (const auto& [name, value] : options.choices) {
    const auto then = told.find(kChoice + name);
    if (then == told.end()) {
      refuse_run("the checkpoint in " + options.directory.string() + " does not record its " + name +
                 ", this run has " + value +
                 "; if all such checkpoints have the same value, set it in TrainingRunOptions::untold");
    }
    require_same(options.directory, name, then->second, value);
  }
}

}  // namespace

void refuse_run(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void require_equal_parameters(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const LocalStepsOptimizer*>(&optimizer) == nullptr) return;
  refuse_run(
      "TrainingRun cannot store this optimizer: it leaves the ranks with different parameters, and a run stores only "
      "those of rank 0. Each rank can save its model and the optimizer's state_dict() with save_checkpoint()");
}

LockstepState lockstep_state_of(DdpBase& ddp) {
  return ddp.options().lockstep.shards == 0 ? LockstepState{} : ddp.lockstep_state();
}

Checkpoint newest_checkpoint(const ProcessGroup& group, const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  const std::string step = from_rank_0(group, "checkpoint to resume from", [&]() -> std::string {
    if (!std::filesystem::is_directory(directory)) return "";
    auto latest = latest_checkpoint(directory);
    if (!latest) return "";
    checkpoint = std::move(latest->checkpoint);
    return std::to_string(latest->step);
  });
  if (step.empty()) {
    refuse_run("there is no undamaged checkpoint in " + directory.string() +
               "; start a new run instead of resuming, or name the directory that has one");
  }
  act_together(group, "load of the checkpoint to resume from", [&] {
    if (group.rank() == 0) return;
    const auto chosen = checked_decimal(step, "step", {"checkpoint to resume from", 0});
    checkpoint = load_checkpoint(step_path(directory, static_cast<std::uint64_t>(chosen)));
  });
  return checkpoint;
}

Resumption checked_resumption(Checkpoint& checkpoint, const TrainingRunOptions& options, const ProcessGroup& group,
                              torch::nn::Module& module, DdpBase& ddp, torch::optim::Optimizer& optimizer) {
  require_equal_parameters(optimizer);
  Resumption resumption;
  LockstepState& mode = resumption.mode;
  mode = lockstep_state_of(ddp);
  auto& told = checkpoint.metadata;
  told.insert({{"shards", "0"}, {"shards_seed", std::to_string(mode.seed)}, {"threads", "0"}, {"arithmetic", ""}});
  told.insert({{"ranks", "0"}, {"shards_step", told["step"]}});
  require_choices(options, told);
  require_same(options.directory, "shards", told["shards"], std::to_string(mode.shards));
  require_same(options.directory, "the seed of lockstep mode", told["shards_seed"], std::to_string(mode.seed));
  resumption.position = position_in(checkpoint, options.directory);
  const std::string where = options.directory.string();
  const Origin origin{where};
  mode.threads = static_cast<int>(number_in(checkpoint, "threads", INT_MAX, origin));
  mode.arithmetic = told["arithmetic"];
  mode.step = static_cast<std::uint64_t>(number_in(checkpoint, "shards_step", INT64_MAX, origin));
  const std::int64_t ranks = number_in(checkpoint, "ranks", INT_MAX, origin);
  if (ranks != 0 && ranks != group.size() && resumption.position.batch != 0) {
    resumption.samples_a_step =
        static_cast<double>(resumption.position.samples) / static_cast<double>(resumption.position.batch);
  }
  resumption.random =
      mode.shards == 0 ? own_random_state(checkpoint, group.rank(), group.size()) : random_state(checkpoint);
  resumption.load_optimizer = checked_load(checkpoint, optimizer);
  resumption.load_module = checked_load(checkpoint, module);
  return resumption;
}

}  // namespace lockstep::internal
