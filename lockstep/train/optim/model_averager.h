// Model averagers let ranks train by themselves and average their parameters from time to time: less communication than
// averaging gradients at every step, but replicas differ in between. optimizer.step() -> average_parameters(). After
// torch.distributed.algorithms.model_averaging. For post-local SGD, which averages within a node at every step and over
// all nodes now and then, use one together with post_local_sgd_hook() in post_local_sgd.h, with warmup_steps equal to
// its start_step. Between two averagings the ranks' parameters differ, so a DistributedDataParallel must not compare
// them: {.compare_parameters_every = 0}. All ranks call the same in the same order, on one thread; calls block, and
// fail as ProcessGroup's calls do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

class ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  // Call it after every step of the optimizer: counts it and, when it is time, replaces the parameters by their mean
  // over a group of ranks. Error{invalid_argument} for parameters of a model in lockstep mode. Those without a gradient
  // are skipped, and must be the same ones on all ranks.
  void average_parameters(const std::vector<at::Tensor>& parameters);

  // The number of calls of average_parameters(); to be saved and restored with the model.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }
  // All ranks that average, each at some steps.
  virtual const ProcessGroup& group() const = 0;

 protected:
  explicit ModelAverager(std::int64_t warmup_steps);

 private:
  // Which ranks average at this step; null if none do.
  virtual const ProcessGroup* group_at(std::int64_t step, std::int64_t warmup_steps) const = 0;

  std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

struct PeriodicAveraging {
  std::int64_t period = 1;
  std::int64_t warmup_steps = 0;  // first steps, without averaging
};

// All ranks of the group, at the first step after the warm-up and at every `period`th one from there.
class PeriodicModelAverager : public ModelAverager {
 public:
  // Error{invalid_argument}: a period below 1, or a negative warm-up.
  PeriodicModelAverager(const ProcessGroup& group, const PeriodicAveraging& options);
  const ProcessGroup& group() const override { return group_; }

 private:
  const ProcessGroup* group_at(std::int64_t step, std::int64_t warmup_steps) const override;

  ProcessGroup group_;
  std::int64_t period_;
};

struct AveragingLevel {
  std::int64_t period = 1;  // steps
  int group_size = 1;       // ranks
};

struct HierarchicalAveraging {
  std::vector<AveragingLevel> levels = {};  // from small to large
  std::int64_t warmup_steps = 0;
};

// Groups of several sizes, the larger ones less often: ranks 0 to group_size - 1 are one, the next group_size ranks
// another. A step that several periods divide belongs to the largest of them; steps count from the beginning, not from
// the end of the warm-up.
class HierarchicalModelAverager : public ModelAverager {
 public:
  // Collective: it makes groups by ProcessGroup::split(), whose errors it has. Error{invalid_argument}: no levels;
  // periods that do not grow; a size that does not divide the group's, or is below that of the level before; a last
  // size that is not the group's.
  HierarchicalModelAverager(const ProcessGroup& group, const HierarchicalAveraging& options);
  const ProcessGroup& group() const override { return levels_.back().second; }

 private:
  const ProcessGroup* group_at(std::int64_t step, std::int64_t warmup_steps) const override;

  std::vector<std::pair<std::int64_t, ProcessGroup>> levels_;  // period and group
};

}  // namespace lockstep
