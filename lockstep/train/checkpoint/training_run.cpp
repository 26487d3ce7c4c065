#include "lockstep/train/checkpoint/training_run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/train/checkpoint/accepted_load.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/run_log.h"
#include "lockstep/train/checkpoint/run_metadata.h"
#include "lockstep/train/checkpoint/save_plan.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_writing.h"
#include "lockstep/train/checkpoint/single_file_run.h"
#include "lockstep/train/checkpoint/state_parts.h"
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

// As JSON, for comparison. Refuses what the manifest of a set would refuse.
std::string checked_text(const std::map<std::string, std::string>& choices) {
  constexpr std::size_t kMostBytes = 65536;
  for (const auto& [name, value] : choices) {
    const std::size_t longest = std::max(name.size(), value.size());
    if (longest <= kMostBytes) continue;
    refuse_run(
        fmt::format("TrainingRunOptions::choices: the name or value of '{}' has {} bytes; at most {} are allowed",
                    name.substr(0, 64), longest, kMostBytes));
  }
  try {
    return nlohmann::json(choices).dump();
  } catch (const nlohmann::json::exception& error) {
    refuse_run(std::string("the choices of a TrainingRun cannot be stored, as they are not UTF-8: ") + error.what());
  }
}

// The name of the newest checkpoint, damaged or not; of a set, and of a single file of an earlier version.
struct Newest {
  std::optional<SetPlace> set;
  std::optional<StepFile> file;

  bool is_file() const { return file && (!set || file->step > set->step); }
  std::string name() const {
    if (is_file()) return file->path.filename().string();
    return set ? set->path.filename().string() : "";
  }
};

Newest newest_in(const std::filesystem::path& directory) {
  Newest newest;
  if (!std::filesystem::is_directory(directory)) return newest;
  if (const auto sets = list_sets(directory); !sets.empty()) {
    newest.set = sets.front();
  } else if (const auto parts = list_parts_alone(directory); !parts.empty()) {
    // A set that has lost its manifest is a damaged one: the directory must not look empty, or a run would begin again.
    newest.set = SetPlace{.step = step_of_set(parts.front()).value_or(0), .path = parts.front()};
  }
  if (const auto files = list_step_files(directory); !files.empty()) newest.file = files.front();
  return newest;
}

// The path of the newest undamaged single file, which is resumed from if no undamaged set is as new; empty: there is
// none, and there are sets.
std::string newest_single_file(const std::filesystem::path& directory) {
  if (const auto file = latest_checkpoint(directory)) return file->path.string();
  if (newest_in(directory).set) return "";
  refuse_run("there is no undamaged checkpoint in " + directory.string() +
             "; start a new run instead of resuming, or name the directory that has one");
}

TrainingRunOptions with_whole_path(TrainingRunOptions options) {
  options.directory = whole_path(options.directory);
  return options;
}

DdpBase& ddp_of(const State& state) {
  if (state.model.ddp() != nullptr) return *state.model.ddp();
  refuse_run("the State of a TrainingRun needs a DistributedDataParallel as its model");
}

}  // namespace

TrainingRun::TrainingRun(ProcessGroup group, TrainingRunOptions options)
    : group_(std::move(group)),
      options_(with_whole_path(std::move(options))),
      log_(group_, options_.directory / "metrics.jsonl") {
  std::vector<std::string> choices =
      gather_together(group_, "start of a run", [&] { return host_name() + '\n' + checked_text(options_.choices); });
  std::vector<std::string> hosts;
  for (std::string& each : choices) {
    const std::size_t end = each.find('\n');
    hosts.push_back(each.substr(0, end));
    each.erase(0, end + 1);
  }
  for (std::size_t rank = 1; rank < choices.size(); ++rank) {
    if (choices[rank] == choices[0]) continue;
    refuse_run(fmt::format(
        "the choices of a TrainingRun differ: rank 0 has {}, rank {} has {}; give all ranks the same choices",
        choices[0], rank, choices[rank]));
  }
  earlier_newest_ = from_rank_0(group_, "directory of a run", [&] {
    prepare(options_.directory);
    log_.require_file();
    return newest_in(options_.directory).name();
  });
  log_.set_hosts(std::move(hosts));
  if (!earlier_newest_.empty()) earlier_ = Earlier::to_refuse;
}

void TrainingRun::start_anew() {
  if (earlier_ == Earlier::to_refuse) earlier_ = Earlier::to_replace;
}

void TrainingRun::require_directory() const {
  if (earlier_ != Earlier::to_refuse) return;
  refuse_run(
      fmt::format("the directory {} has checkpoints of an earlier run, the newest {}; call resume() to continue it, "
                  "start_anew() to replace it, or name another directory",
                  options_.directory.string(), earlier_newest_));
}

void TrainingRun::add_step(double mean_loss, std::int64_t samples, const State& state) {
  require_directory();
  DdpBase& ddp = ddp_of(state);
  if (!std::exchange(is_storable_, true)) {
    // Before more is trained that could not be saved. All ranks have the same, so each looks for itself.
    const std::optional<Error> failure = error_in([&] { require_storable(state); });
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
  if (options_.every != 0 && position.step % options_.every == 0) save(state);
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
  return set_path(options_.directory, static_cast<std::uint64_t>(position.step));
}

void TrainingRun::save(const State& given) {
  require_directory();
  DdpBase& ddp = ddp_of(given);
  log_.flush(position.step, ddp);
  State state = given;
  state.step = position.step;
  state.epoch = position.epoch;
  TrainingPosition of_all = position;
  group_.all_reduce(of_all.loss_sum, of_all.samples);
  act_together(group_, "position of a run", [&] { require_storable(of_all); });
  ddp.step_timer().leave_out();
  const TimePoint start = steady_clock().now();
  SaveJob job = plan_save(options_.directory, state, {.retention = {.keep_last = options_.keep_last}}, group_);
  job.single_files = SingleFiles::counted;
  job.replaces_earlier_run = earlier_ == Earlier::to_replace;
  job.manifest.metadata.merge(run_metadata(of_all, options_.choices));
  const std::filesystem::path set = run_save(job, group_);
  // The checkpoint is there: what fails from here on is a warning.
  log_.add_line(position.step, checkpoint_line(position.step, set, seconds(steady_clock().now() - start)));
  ddp.step_timer().leave_out();
  earlier_ = Earlier::nothing;
}

const TrainingPosition& TrainingRun::resume(const State& state) {
  DdpBase& ddp = ddp_of(state);
  const std::string file =
      from_rank_0(group_, "checkpoint to resume from", [&] { return newest_single_file(options_.directory); });
  TrainingPosition stored;
  const auto accept = [&](const Metadata& metadata) { stored = checked_position(metadata, options_); };
  const auto set = load_accepted(options_.directory, state, group_, accept, step_of(file));
  const int ranks = set ? set->world_size : load_single_file(file, state, group_, accept);
  position = stored;
  if (ddp.options().lockstep.shards == 0 && ranks != 0 && ranks != group_.size() && position.batch != 0) {
    samples_a_step_ = static_cast<double>(position.samples) / static_cast<double>(position.batch);
  }
  if (group_.rank() != 0) {
    position.loss_sum = 0;
    position.samples = 0;
  }
  earlier_ = Earlier::nothing;
  return position;
}

}  // namespace lockstep
