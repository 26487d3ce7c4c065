// TrainingRun is a training with its directory: it saves and resumes the State of save.h at the right moments, together
// with the position in the data and with settings that must not change, and logs how ranks spend their steps. Each save
// is a set, step-0000000400; a killed run resumes from the newest undamaged one, with the same bits at the same number
// of ranks; in lockstep mode at any. Single files of earlier versions, step-0000000400.safetensors, are resumed too.
// Every rank continues with its own random numbers; with as many ranks as before the same, otherwise new ones derived
// from the stored states and the rank. In lockstep mode random numbers belong to shards, and numbers that ranks draw
// between steps continue from rank 0's state.
//   lockstep::TrainingRun run(world, {.directory = "out", .choices = {{"batch_size", "128"}}});
//   if (resume) run.resume(ddp, optimizer); else run.start_anew();
//   sampler.set_epoch(run.position.epoch); for (... : loader(train, sampler, {.first_batch = run.position.batch})) {
//     ... one step; run.add_step(loss, samples, ddp, optimizer); }  run.position.begin_next_epoch(); run.save(...);
// Each call also takes a State, whose model is a DistributedDataParallel, in place of the two: with a sampler, a
// loader, a scaler, a hook, values of the program. The run sets its step and epoch. Its log, metrics.jsonl, also shows
// how ranks spend their steps; a rank that delays the others causes a warning. All ranks call the same functions.
// Errors as of save(), load() and ProcessGroup's calls.
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
#include "lockstep/train/checkpoint/state.h"
#include "lockstep/train/checkpoint/training_log.h"

namespace lockstep {

struct TrainingRunOptions {
  std::filesystem::path directory;  // a relative one is resolved when the run is constructed
  // Settings that a resumed run must share, all of them, under any names: otherwise Error{invalid_argument} shows both
  // values. The checkpoint's metadata has them with the prefix "choice.".
  std::map<std::string, std::string> choices = {};
  // The values of choices that a checkpoint of an older program does not record.
  std::map<std::string, std::string> untold = {};
  int keep_last = 3;       // checkpoints, sets and single files; 0 keeps all
  std::int64_t every = 0;  // steps after which add_step() saves; 0: never
};

// The next batch is number `batch` of epoch `epoch`, after `step` steps in all.
struct TrainingPosition {
  std::int64_t step = 0;
  int epoch = 0;
  std::int64_t batch = 0;
  // Over this rank's samples in the epoch so far. A checkpoint has the sums over all ranks, which rank 0 gets from
  // resume().
  double loss_sum = 0;
  std::int64_t samples = 0;

  double mean_loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
  void begin_next_epoch() { *this = {.step = step, .epoch = epoch + 1}; }
};

class TrainingRun {
 public:
  // Rank 0 creates the directory, before any training that could not be saved. Collective. Error{invalid_argument} on
  // all ranks if it cannot be written, if metrics.jsonl in it is not a file, or choices differ between ranks or are not
  // UTF-8.
  TrainingRun(ProcessGroup group, TrainingRunOptions options);

  TrainingPosition position;

  // Records a step over `samples` of this rank (0 if repeated in join()). Saves if due. Ranks may compare times.
  // Error{invalid_argument} on all ranks from the first step on (if `every` is 0 a warning), from save() and resume():
  // a model or an optimizer that save() refuses, a position that is negative. From the first step on: the directory has
  // checkpoints of an earlier run, and neither resume() nor start_anew() was called.
  void add_step(double mean_loss, std::int64_t samples, const State& state);
  void add_step(double mean_loss, std::int64_t samples, ModelRef model, OptimizerRef optimizer) {
    add_step(mean_loss, samples, {.model = model, .optimizer = optimizer});
  }
  void save(const State& state);
  void save(ModelRef model, OptimizerRef optimizer) { save({.model = model, .optimizer = optimizer}); }
  // Loads the newest undamaged checkpoint that rank 0 finds. Error{invalid_argument}: there is none, or it is of
  // another run, on any rank; then nothing has changed on any. In lockstep mode a warning says why bits will differ
  // from before. With another number of ranks in the middle of an epoch, a step must have as many samples over all
  // ranks as before (BatchSize::global); otherwise the first step logs a warning.
  const TrainingPosition& resume(const State& state);
  const TrainingPosition& resume(ModelRef model, OptimizerRef optimizer) {
    return resume({.model = model, .optimizer = optimizer});
  }
  // The same, or begins a run if none has been saved yet. For programs that are restarted automatically.
  const TrainingPosition& resume_if_any(const State& state) {
    return earlier_newest_.empty() ? position : resume(state);
  }
  const TrainingPosition& resume_if_any(ModelRef model, OptimizerRef optimizer) {
    return resume_if_any({.model = model, .optimizer = optimizer});
  }
  // For a directory with checkpoints of an earlier run: this run's first checkpoint replaces them all. They are removed
  // right before it appears, so that the directory never has checkpoints of both. Error{internal} of that save: one of
  // them cannot be removed.
  void start_anew();
  // Of the epoch so far, over all ranks. Collective.
  double mean_loss() const;
  // Rank 0 adds a line of JSON to metrics.jsonl in the directory: "epoch", these names and numbers, "world_size". A log
  // that cannot be written is a warning, not an error.
  void log_metrics(std::initializer_list<std::pair<std::string_view, double>> metrics);
  // How ranks spent their latest steps, the same on all ranks; empty for the first 20 steps.
  const std::optional<StepReport>& step_report() const { return log_.step_report(); }
  // "  rank 2 is late by 12.3 ms (data)", for a progress line; empty if no rank delays the others.
  std::string straggler_text() const { return log_.straggler_text(); }
  std::filesystem::path path() const;  // of the checkpoint at `position`

 private:
  // What the directory holds that is not of this run.
  enum class Earlier { nothing, to_refuse, to_replace };

  void require_directory() const;
  void compare_steps(double before, std::int64_t samples) const;

  const ProcessGroup group_;
  const TrainingRunOptions options_;
  Earlier earlier_ = Earlier::nothing;
  std::string earlier_newest_;  // of the checkpoints that it had at the beginning; the same on all ranks
  internal::TrainingLog log_;
  bool is_storable_ = false;   // model and optimizer, as the first step has checked
  double samples_a_step_ = 0;  // before a resume with other ranks, compared with the first step; 0: none
};

}  // namespace lockstep
