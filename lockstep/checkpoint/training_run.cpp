#include "lockstep/checkpoint/training_run.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/group/object_codecs.h"
#include "lockstep/group/objects.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr const char* kLossSoFar = "loss_so_far";
constexpr const char* kChoice = "choice.";  // begins the names of choices in the metadata

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void prepare(const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (!failure && ::access(directory.c_str(), W_OK | X_OK) != 0) failure.assign(errno, std::generic_category());
  if (!failure) return;
  refuse("cannot write to the directory " + directory.string() + ": " + failure.message() + "; name another");
}

std::map<std::string, std::string> metadata_of(const std::map<std::string, std::string>& choices) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : choices) metadata[kChoice + name] = value;
  return metadata;
}

// As a file of them would be refused.
void check_choices(const std::map<std::string, std::string>& choices) {
  try {
    SafetensorsHeader header{.metadata = metadata_of(choices)};
    lay_out(header);
    serialise_header(header);
  } catch (const Error& error) {
    refuse(std::string("the choices of a TrainingRun cannot be stored: ") + error.what());
  }
}

// What rank 0 tells the others about the directory: why it cannot be used, and its newest checkpoint.
std::pair<std::string, std::string> prepared(const std::filesystem::path& directory) {
  try {
    prepare(directory);
    const auto files = list_step_files(directory);
    return {"", files.empty() ? "" : files.front().path.filename().string()};
  } catch (const Error& error) {
    return {error.what(), ""};
  }
}

// The newest that rank 0 finds, so that all ranks read the same file.
Checkpoint newest_checkpoint(const ProcessGroup& group, const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  const at::Tensor step = at::full({1}, -1, at::kLong);
  if (group.rank() == 0 && std::filesystem::is_directory(directory)) {
    if (auto latest = latest_checkpoint(directory)) {
      step.fill_(static_cast<std::int64_t>(latest->step));
      checkpoint = std::move(latest->checkpoint);
    }
  }
  group.broadcast(step, 0, {.name = "step to resume from"});
  const auto chosen = step.item<std::int64_t>();
  if (chosen < 0) {
    refuse("there is no checkpoint in " + directory.string() +
           "; start anew instead of resuming, or name the directory that has one");
  }
  if (group.rank() == 0) return checkpoint;
  return load_checkpoint(step_path(directory, static_cast<std::uint64_t>(chosen)));
}

// Zeros and an empty text without lockstep mode.
LockstepState lockstep_state_of(DdpBase& ddp) {
  return ddp.options().lockstep.shards == 0 ? LockstepState{} : ddp.lockstep_state();
}

void require_equal_parameters(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const LocalStepsOptimizer*>(&optimizer) == nullptr) return;
  refuse(
      "TrainingRun cannot keep this optimizer: it leaves the ranks with different parameters, and a run has those of "
      "rank 0 only. Each rank can save its model and the optimizer's state_dict() by save_checkpoint()");
}

// All ranks look at it, not only the one that writes, so that all refuse what cannot be kept.
void add_kept_optimizer(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer) {
  require_equal_parameters(optimizer);
  try {
    add_optimizer(checkpoint, optimizer);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string("TrainingRun cannot keep this optimizer: ") + error.what() +
                                  ". What a ZeroRedundancyOptimizer's state_dict() returns can be kept by "
                                  "save_checkpoint()");
  }
}

void require_same(const std::filesystem::path& directory, const std::string& name, const std::string& then,
                  const std::string& now) {
  if (then == now) return;
  refuse("the checkpoint in " + directory.string() + " was made with " + name + " " + then + ", this run has " + now);
}

// Error{corrupt_data} or Error{invalid_argument} if it is not of a TrainingRun.
TrainingPosition position_in(const Checkpoint& checkpoint, const std::filesystem::path& directory) {
  const auto number = [&](const std::string& name) {
    const auto found = checkpoint.metadata.find(name);
    return checked_decimal(found == checkpoint.metadata.end() ? "" : found->second, name, directory.string());
  };
  const auto sums = checkpoint.tensors.find(kLossSoFar);
  if (sums == checkpoint.tensors.end() || sums->second.numel() != 2 || sums->second.scalar_type() != at::kDouble) {
    refuse("the checkpoint in " + directory.string() + " does not have the two numbers '" + kLossSoFar +
           "', which every TrainingRun stores");
  }
  const auto* numbers = sums->second.const_data_ptr<double>();
  return {.step = number("step"),
          .epoch = static_cast<int>(number("epoch")),
          .batch = number("batch"),
          .loss_sum = numbers[0],
          .samples = static_cast<std::int64_t>(numbers[1])};
}

}  // namespace

TrainingRun::TrainingRun(ProcessGroup group, TrainingRunOptions options)
    : group_(std::move(group)), options_(std::move(options)) {
  check_choices(options_.choices);
  std::pair<std::string, std::string> found;
  if (group_.rank() == 0) found = prepared(options_.directory);
  const auto [problem, newest] = broadcast_object(group_, found, 0, {.name = "directory of the run"});
  if (!problem.empty()) refuse(problem);
  if (newest.empty()) return;
  earlier_ = Earlier::to_refuse;
  earlier_file_ = newest;
}

void TrainingRun::start_anew() {
  if (earlier_ == Earlier::to_refuse) earlier_ = Earlier::to_replace;
}

void TrainingRun::require_directory() const {
  if (earlier_ != Earlier::to_refuse) return;
  refuse("the directory " + options_.directory.string() + " has checkpoints of an earlier run, the newest " +
         earlier_file_ + "; call resume() to go on with it, start_anew() to replace it, or name another directory");
}

// Whether it is time to save.
bool TrainingRun::advance(double mean_loss, std::int64_t samples) {
  require_directory();
  if (samples != 0) position.loss_sum += mean_loss * static_cast<double>(samples);  // the mean of none is NaN
  position.samples += samples;
  ++position.step;
  ++position.batch;
  return options_.every != 0 && position.step % options_.every == 0;
}

void TrainingRun::log_metrics(std::initializer_list<std::pair<std::string_view, double>> metrics) const {
  if (group_.rank() != 0) return;
  std::string line = fmt::format("{{\"epoch\": {}", position.epoch);
  for (const auto& [name, value] : metrics) {
    const std::string quoted = nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    line += fmt::format(", {}: {}", quoted, std::isfinite(value) ? fmt::format("{}", value) : "null");
  }
  line += fmt::format(", \"world_size\": {}}}\n", group_.size());
  const std::filesystem::path file = options_.directory / "metrics.jsonl";
  std::ofstream out(file, std::ios::app);
  out << line;
  out.close();
  if (!out) refuse("cannot write " + file.string());
}

std::filesystem::path TrainingRun::path() const {
  return step_path(options_.directory, static_cast<std::uint64_t>(position.step));
}

void TrainingRun::save_parts(const torch::nn::Module& module, DdpBase& ddp, const torch::optim::Optimizer& optimizer) {
  require_directory();
  Checkpoint checkpoint;
  add_kept_optimizer(checkpoint, optimizer);
  const LockstepState mode = lockstep_state_of(ddp);
  // In lockstep mode the file is the same at any number of ranks; random numbers belong to shards.
  if (mode.shards == 0) gather_random_states(checkpoint, group_);
  if (mode.shards != 0) add_random_state(checkpoint);
  const at::Tensor sums = at::tensor({position.loss_sum, static_cast<double>(position.samples)}, at::kDouble);
  group_.all_reduce(sums, ReduceOp::sum, {.name = "loss so far"});
  if (group_.rank() != 0) return;
  checkpoint.metadata.merge(metadata_of(options_.choices));
  checkpoint.metadata.insert({{"step", std::to_string(position.step)},
                              {"epoch", std::to_string(position.epoch)},
                              {"batch", std::to_string(position.batch)},
                              {"shards", std::to_string(mode.shards)},
                              {"threads", std::to_string(mode.threads)},
                              {"arithmetic", mode.arithmetic}});
  checkpoint.tensors[kLossSoFar] = sums;
  add_module(checkpoint, module);
  save_checkpoint(path(), checkpoint, {.keep_last = earlier_ == Earlier::to_replace ? 1 : options_.keep_last});
  earlier_ = Earlier::nothing;
}

void TrainingRun::resume_parts(torch::nn::Module& module, DdpBase& ddp, torch::optim::Optimizer& optimizer) {
  require_equal_parameters(optimizer);
  Checkpoint checkpoint = newest_checkpoint(group_, options_.directory);
  const LockstepState now = lockstep_state_of(ddp);
  auto& told = checkpoint.metadata;
  told.insert({{"shards", "0"}, {"threads", "0"}, {"arithmetic", ""}});
  for (const auto& [name, value] : options_.untold) told.insert({kChoice + name, value});
  for (const auto& [name, value] : options_.choices) {
    const auto then = told.find(kChoice + name);
    if (then == told.end()) {
      refuse("the checkpoint in " + options_.directory.string() + " does not tell its " + name + ", this run has " +
             value + "; if all such checkpoints had the same, say it in TrainingRunOptions::untold");
    }
    require_same(options_.directory, name, then->second, value);
  }
  require_same(options_.directory, "shards", told["shards"], std::to_string(now.shards));
  const TrainingPosition then = position_in(checkpoint, options_.directory);
  const auto threads = static_cast<int>(checked_decimal(told["threads"], "threads", options_.directory.string()));
  const auto load_optimizer_state = checked_load(checkpoint, optimizer);
  const at::Tensor random =
      now.shards == 0 ? own_random_state(checkpoint, group_.rank(), group_.size()) : random_state(checkpoint);
  load_module(checkpoint, module);  // the last that may refuse
  load_optimizer_state();
  set_random_state(random);
  position = then;
  if (group_.rank() != 0) {
    position.loss_sum = 0;
    position.samples = 0;
  }
  earlier_ = Earlier::nothing;
  if (now.shards == 0) return;
  ddp.load_lockstep_state({.step = static_cast<std::uint64_t>(position.step),
                           .shards = now.shards,
                           .seed = now.seed,
                           .threads = threads,
                           .arithmetic = told["arithmetic"]});
}

}  // namespace lockstep
