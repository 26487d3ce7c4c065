#include "lockstep/train/checkpoint/training_run.h"

#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/formats/safetensors_header.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "lockstep/train/checkpoint/resumption.h"
#include "lockstep/train/checkpoint/run_log.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/checkpoint/together.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"

namespace lockstep {

using namespace internal;

namespace {

void prepare(const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (!failure && ::access(directory.c_str(), W_OK | X_OK) != 0) failure.assign(errno, std::generic_category());
  if (!failure) return;
  refuse_run("cannot write to the directory " + directory.string() + ": " + failure.message() + "; name another");
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
    refuse_run(std::string("the choices of a TrainingRun cannot be stored: ") + error.what());
  }
}

std::string text_of(const std::map<std::string, std::string>& choices) {
  std::string text;
  for (const auto& [name, value] : choices) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name, value);
  return text;
}

// The newest checkpoint that is there; empty if there is none.
std::string begin_in(const std::filesystem::path& directory) {
  prepare(directory);
  AtomicFile::remove_abandoned(directory, "step-");
  const auto files = list_step_files(directory);
  return files.empty() ? "" : files.front().path.filename().string();
}

// All ranks check it, not only the one that writes, so that all refuse state that cannot be stored.
void add_kept_optimizer(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer) {
  require_equal_parameters(optimizer);
  try {
    add_optimizer(checkpoint, optimizer);
  } catch (const Error& error) {
    throw Error(error.kind(),
                std::string("TrainingRun cannot store this optimizer: ") + error.what() +
                    ". The state_dict() of a ZeroRedundancyOptimizer can be stored with save_checkpoint()");
  }
}

// Before more is trained that could not be kept. All ranks have the same, so each looks for itself.
std::optional<Error> why_not_storable(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  try {
    Checkpoint checkpoint;
    add_kept_optimizer(checkpoint, optimizer);
    add_module(checkpoint, module);
    require_storable(checkpoint.tensors);
    return std::nullopt;
  } catch (const Error& error) {
    return Error(error.kind(), std::string("this model or optimizer cannot be saved: ") + error.what());
  }
}

}  // namespace

TrainingRun::TrainingRun(ProcessGroup group, TrainingRunOptions options)
    : group_(std::move(group)), options_(std::move(options)), log_(group_, options_.directory / "metrics.jsonl") {
  std::vector<std::string> choices = gather_together(group_, "start of a run", [&] {
    check_choices(options_.choices);
    return host_name() + '\n' + text_of(options_.choices);
  });
  std::vector<std::string> hosts;
  for (std::string& each : choices) {
    const std::size_t end = each.find('\n');
    hosts.push_back(each.substr(0, end));
    each.erase(0, end + 1);
  }
  for (std::size_t rank = 1; rank < choices.size(); ++rank) {
    if (choices[rank] == choices[0]) continue;
    refuse_run(fmt::format("the choices of a TrainingRun differ: rank 0 has {}, rank {} has {}", choices[0], rank,
                           choices[rank]));
  }
  earlier_file_ = from_rank_0(group_, "directory of a run", [&] { return begin_in(options_.directory); });
  log_.set_hosts(std::move(hosts));
  if (earlier_file_.empty()) return;
  earlier_ = Earlier::to_refuse;
}

void TrainingRun::start_anew() {
  if (earlier_ == Earlier::to_refuse) earlier_ = Earlier::to_replace;
}

void TrainingRun::require_directory() const {
  if (earlier_ != Earlier::to_refuse) return;
  refuse_run("the directory " + options_.directory.string() + " has checkpoints of an earlier run, the newest " +
             earlier_file_ + "; call resume() to continue it, start_anew() to replace it, or name another directory");
}

// Whether it is time to save.
bool TrainingRun::advance(double mean_loss, std::int64_t samples, DdpBase& ddp, const torch::nn::Module& module,
                          const torch::optim::Optimizer& optimizer) {
  require_directory();
  if (!std::exchange(is_compared_, true)) {
    const auto failure = why_not_storable(module, optimizer);
    if (failure && options_.every != 0) throw Error(*failure);
    if (failure && group_.rank() == 0) log_warning(failure->what());
  }
  log_.begin(position.step);
  if (const double before = std::exchange(samples_a_step_, 0); before != 0) compare_steps(before, samples);
  if (is_joined()) samples = 0;
  if (samples != 0) position.loss_sum += mean_loss * static_cast<double>(samples);  // the mean of none is NaN
  position.samples += samples;
  ++position.step;
  ++position.batch;
  log_.step_is_over(position.step, ddp);
  return options_.every != 0 && position.step % options_.every == 0;
}

// The position in an epoch counts steps, so they must have as many samples as before.
void TrainingRun::compare_steps(double before, std::int64_t samples) const {
  group_.all_reduce(samples, ReduceOp::sum, {.name = "samples of the first step"});
  if (static_cast<double>(samples) == before || group_.rank() != 0) return;
  log_warning(
      fmt::format("a run resumes in the middle of an epoch with another number of ranks: a step had {:.0f} samples and "
                  "now has {}, so some samples of this epoch may be used twice or not at all; set the samples of a "
                  "step over all ranks (BatchSize::global), or resume from a checkpoint between two epochs",
                  before, samples));
}

double TrainingRun::mean_loss() const {
  double sum = position.loss_sum;
  std::int64_t samples = position.samples;
  group_.all_reduce(sum, samples);
  return samples == 0 ? 0 : sum / static_cast<double>(samples);
}

void TrainingRun::log_metrics(std::initializer_list<std::pair<std::string_view, double>> metrics) {
  if (group_.rank() != 0) return;
  std::string line = fmt::format("{{\"epoch\": {}", position.epoch);
  for (const auto& [name, value] : metrics) {
    const std::string quoted = nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    line += fmt::format(", {}: {}", quoted, std::isfinite(value) ? fmt::format("{}", value) : "null");
  }
  line += fmt::format(", \"world_size\": {}}}", group_.size());
  log_.add_line(position.step, line);
}

std::filesystem::path TrainingRun::path() const {
  return step_path(options_.directory, static_cast<std::uint64_t>(position.step));
}

void TrainingRun::save_parts(const torch::nn::Module& module, DdpBase& ddp, const torch::optim::Optimizer& optimizer) {
  require_directory();
  log_.flush(position.step, ddp);
  Checkpoint checkpoint;
  act_together(group_, "run to save", [&] { add_kept_optimizer(checkpoint, optimizer); });
  ddp.compare_parameters(group_);
  if (!ddp.has_buffers_of_rank_0()) ddp.sync_buffers();  // after a join
  const LockstepState mode = lockstep_state_of(ddp);
  // In lockstep mode the file is the same at any number of ranks; random numbers belong to shards.
  if (mode.shards == 0) {
    gather_random_states(checkpoint, group_);
  } else {
    add_random_state(checkpoint);
  }
  const at::Tensor sums = at::tensor({position.loss_sum, static_cast<double>(position.samples)}, at::kDouble);
  group_.all_reduce(sums, ReduceOp::sum, {.name = "loss so far"});
  ddp.step_timer().leave_out();
  from_rank_0(group_, "checkpoint of a run", [&] {
    checkpoint.metadata.merge(metadata_of(options_.choices));
    checkpoint.metadata.insert({{"step", std::to_string(position.step)},
                                {"epoch", std::to_string(position.epoch)},
                                {"batch", std::to_string(position.batch)},
                                {"ranks", std::to_string(mode.shards == 0 ? group_.size() : 0)},
                                {"shards", std::to_string(mode.shards)},
                                {"shards_seed", std::to_string(mode.seed)},
                                {"shards_step", std::to_string(mode.step)},
                                {"threads", std::to_string(mode.threads)},
                                {"arithmetic", mode.arithmetic}});
    checkpoint.tensors[kLossSoFar] = sums;
    add_module(checkpoint, module);
    const TimePoint start = steady_clock().now();
    save_checkpoint(path(), checkpoint, {.keep_last = earlier_ == Earlier::to_replace ? 1 : options_.keep_last});
    log_.add_line(position.step, checkpoint_line(position.step, path(), seconds(steady_clock().now() - start)));
    return std::string();
  });
  ddp.step_timer().leave_out();
  earlier_ = Earlier::nothing;
}

void TrainingRun::resume_parts(torch::nn::Module& module, DdpBase& ddp, torch::optim::Optimizer& optimizer) {
  Checkpoint checkpoint = newest_checkpoint(group_, options_.directory);
  Resumption resumption;
  act_together(group_, "run to resume",
               [&] { resumption = checked_resumption(checkpoint, options_, group_, module, ddp, optimizer); });
  act_together(group_, "resumed run", [&] {
    resumption.load_module();
    resumption.load_optimizer();
    set_random_state(resumption.random);
  });
  position = resumption.position;
  samples_a_step_ = resumption.samples_a_step;
  if (group_.rank() != 0) {
    position.loss_sum = 0;
    position.samples = 0;
  }
  earlier_ = Earlier::nothing;
  if (resumption.mode.shards != 0) ddp.load_lockstep_state(resumption.mode);
}

}  // namespace lockstep
