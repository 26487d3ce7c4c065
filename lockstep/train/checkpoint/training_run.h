// TrainingRun keeps a whole training on disk: model, optimizer, random numbers, where it stands, and what must not
// change between a run and its continuation. One file a time, step-0000000400.safetensors, in one directory; a run that
// was killed goes on from the newest whole one, with the same bits at the same number of ranks; in lockstep mode at
// any. Every rank goes on with its own random numbers; with as many ranks as before the same, otherwise new ones that
// follow from the stored states and the rank (random_state.h). In lockstep mode random numbers belong to shards, and
// what ranks draw between the steps goes on from rank 0's.
// What is not kept: what a communication hook remembers (PowerSgd::state()), and what ranks have apart from each other:
// DdpOptions::ignored parameters and, without forward_sync_buffers, buffers are rank 0's afterwards.
//   lockstep::TrainingRun run(world, {.directory = "out", .choices = {{"batch_size", "128"}}});
//   if (resume) run.resume(ddp, optimizer); else run.start_anew();
//   sampler.set_epoch(run.position.epoch); for (... : loader(train, sampler, {.first_batch = run.position.batch})) {
//     ... one step; run.add_step(loss, samples, ddp, optimizer); }  run.position.begin_next_epoch(); run.save(...);
// Its log, metrics.jsonl, also tells what ranks spend their steps on; a rank that holds up the others is warned of.
// All ranks call the same functions; rank 0 writes. Errors as of checkpoint.h and of ProcessGroup's calls.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/training_log.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct TrainingRunOptions {
  std::filesystem::path directory;
  // What a continuation must have the same, by any names: Error{invalid_argument} that shows both. The file's metadata
  // has them with "choice." in front.
  std::map<std::string, std::string> choices = {};
  // The values of choices that a checkpoint does not tell, since it is of an older program.
  std::map<std::string, std::string> untold = {};
  int keep_last = 3;       // files; 0 keeps all
  std::int64_t every = 0;  // steps after which add_step() saves; 0: never
};

// The next batch is number `batch` of epoch `epoch`, after `step` steps in all.
struct TrainingPosition {
  std::int64_t step = 0;
  int epoch = 0;
  std::int64_t batch = 0;
  // Of this rank's samples in the epoch so far. A checkpoint has the sums over all ranks, which rank 0 has after
  // resume().
  double loss_sum = 0;
  std::int64_t samples = 0;

  double mean_loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
  void begin_next_epoch() { *this = {.step = step, .epoch = epoch + 1}; }
};

class TrainingRun {
 public:
  // Rank 0 makes the directory, before any work is done that could not be kept. Collective. Error{invalid_argument} on
  // all ranks if it cannot be written, or choices differ among ranks or cannot be stored: control characters in names,
  // text that is not UTF-8.
  TrainingRun(ProcessGroup group, TrainingRunOptions options);

  TrainingPosition position;

  // A step over so many samples of this rank (0 if repeated in join()) is done. Saves if due. Ranks may compare times.
  // Error{invalid_argument} on all ranks from the first step on (if `every` is 0 a warning), from save() and resume():
  // tensors that no file holds, an optimizer that optimizer_state.h does not store or that leaves ranks with different
  // parameters (ZeroRedundancyOptimizer, PostLocalSgdOptimizer). From the first step on: the directory has those of an
  // earlier run, and neither resume() nor start_anew() was called. Error{desync} when it saves: parameters differ.
  template <class Module>
  void add_step(double mean_loss, std::int64_t samples, DistributedDataParallel<Module>& ddp,
                const torch::optim::Optimizer& optimizer) {
    if (advance(mean_loss, samples, ddp, *ddp.module(), optimizer)) save(ddp, optimizer);
  }
  template <class Module>
  void save(DistributedDataParallel<Module>& ddp, const torch::optim::Optimizer& optimizer) {
    save_parts(*ddp.module(), ddp, optimizer);
  }
  // From the newest undamaged checkpoint that rank 0 finds. Error{invalid_argument}: there is none, or it is of another
  // run, on any rank; then nothing has changed on any. In lockstep mode a warning says what will make other bits than
  // before. With another number of ranks in the middle of an epoch a step has to have as many samples as before, over
  // all ranks (BatchSize::global); the first step says in a warning if it has not.
  template <class Module>
  const TrainingPosition& resume(DistributedDataParallel<Module>& ddp, torch::optim::Optimizer& optimizer) {
    resume_parts(*ddp.module(), ddp, optimizer);
    return position;
  }
  // The same; where no run has saved yet, this one begins. For programs that are started again by themselves.
  template <class Module>
  const TrainingPosition& resume_if_any(DistributedDataParallel<Module>& ddp, torch::optim::Optimizer& optimizer) {
    return earlier_file_.empty() ? position : resume(ddp, optimizer);
  }
  // For a directory that has the checkpoints of an earlier run: this run's first one replaces them.
  void start_anew();
  // Of the epoch so far, over all ranks. Collective.
  double mean_loss() const;
  // Rank 0 adds a line of JSON to metrics.jsonl in the directory: "epoch", these names and numbers, "world_size".
  void log_metrics(std::initializer_list<std::pair<std::string_view, double>> metrics);
  // What ranks spent their steps on lately, the same on all; nothing for the first 20.
  const std::optional<StepReport>& step_report() const { return log_.step_report(); }
  // "  rank 2 is late by 12.3 ms (data)", for a line of progress; empty if no rank holds up the others.
  std::string straggler_text() const { return log_.straggler_text(); }
  std::filesystem::path path() const;  // of the checkpoint at `position`

 private:
  // What the directory holds that is not of this run.
  enum class Earlier { nothing, to_refuse, to_replace };

  void require_directory() const;
  bool advance(double mean_loss, std::int64_t samples, DdpBase& ddp, const torch::nn::Module& module,
               const torch::optim::Optimizer& optimizer);
  void compare_steps(double before, std::int64_t samples) const;
  void save_parts(const torch::nn::Module& module, DdpBase& ddp, const torch::optim::Optimizer& optimizer);
  void resume_parts(torch::nn::Module& module, DdpBase& ddp, torch::optim::Optimizer& optimizer);

  const ProcessGroup group_;
  const TrainingRunOptions options_;
  Earlier earlier_ = Earlier::nothing;
  std::string earlier_file_;  // the newest of those that it had at the beginning; the same on all ranks
  internal::TrainingLog log_;
  bool is_compared_ = false;   // with what can be stored
  double samples_a_step_ = 0;  // before a resume with other ranks, to be compared with the first step; 0: nothing to do
};

}  // namespace lockstep
