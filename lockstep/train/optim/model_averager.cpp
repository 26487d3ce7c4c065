#include "lockstep/train/optim/model_averager.h"

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/derived.h"
#include "lockstep/train/ddp/autograd/backward_watch.h"
#include "lockstep/train/ddp/parameter_numbers.h"

namespace lockstep {

using namespace internal;

namespace {

[[noreturn]] void refuse(const char* averager, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: {}", averager, why));
}

void check(const char* averager, const HierarchicalAveraging& options, int size) {
  if (options.levels.empty()) refuse(averager, "the list of levels is empty; give at least one");
  AveragingLevel before{.period = 0, .group_size = 1};
  for (const AveragingLevel& level : options.levels) {
    if (level.period <= before.period) {
      refuse(averager, fmt::format("period {} follows {}; periods must be above 0, and grow from level to level",
                                   level.period, before.period));
    }
    if (level.group_size < before.group_size || size % level.group_size != 0) {
      refuse(averager, fmt::format("group size {} follows {}; sizes must divide the {} ranks, and must not shrink",
                                   level.group_size, before.group_size, size));
    }
    before = level;
  }
  if (before.group_size != size) {
    refuse(
        averager,
        fmt::format("the groups of the last level have only {} of the {} ranks; add a level whose group has all ranks",
                    before.group_size, size));
  }
}

void warn_of_every_step(const char* averager) {
  log_warning(
      fmt::format("{}: averaging parameters at every step costs no less than averaging gradients does", averager));
}

}  // namespace

ModelAverager::ModelAverager(std::int64_t warmup_steps) : warmup_steps_(warmup_steps) {
  if (warmup_steps < 0) refuse("ModelAverager", fmt::format("warmup_steps is {}; give 0 or more", warmup_steps));
}

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  if (std::ranges::any_of(parameters, &BackwardWatch::watches)) {
    refuse(
        "average_parameters",
        "these are parameters of a model in lockstep mode, which are equal on all ranks after every step; their mean "
        "could differ in the last bit. Leave the averager out");
  }
  const std::int64_t step = step_++;
  const ProcessGroup* group = step < warmup_steps_ ? nullptr : group_at(step, warmup_steps_);
  if (group == nullptr) return;
  std::vector<at::Tensor> averaged;
  std::vector<std::size_t> numbers;
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    if (!parameters[number].grad().defined()) continue;
    averaged.push_back(parameters[number].detach());
    numbers.push_back(number);
  }
  const std::string name = name_with_numbers("average_parameters", numbers);
  for (const auto& [dtype, tensors] : by_dtype(averaged)) {
    group->all_reduce(tensors, ReduceOp::avg, {.name = name});
  }
}

PeriodicModelAverager::PeriodicModelAverager(const ProcessGroup& group, const PeriodicAveraging& options)
    : ModelAverager(options.warmup_steps), group_(group), period_(options.period) {
  if (period_ < 1) refuse("PeriodicModelAverager", fmt::format("the period is {}; give 1 or more", period_));
  if (period_ == 1) warn_of_every_step("PeriodicModelAverager");
}

const ProcessGroup* PeriodicModelAverager::group_at(std::int64_t step, std::int64_t warmup_steps) const {
  return (step - warmup_steps) % period_ == 0 ? &group_ : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(const ProcessGroup& group, const HierarchicalAveraging& options)
    : ModelAverager(options.warmup_steps) {
  check("HierarchicalModelAverager", options, group.size());
  for (const auto& [period, group_size] : options.levels) {
    levels_.emplace_back(period, group_size == group.size() ? group : *group.split(group.rank() / group_size));
  }
  if (levels_.back().first == 1) warn_of_every_step("HierarchicalModelAverager");
}

const ProcessGroup* HierarchicalModelAverager::group_at(std::int64_t step, std::int64_t) const {
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    if (step % level->first == 0) return &level->second;
  }
  return nullptr;
}

}  // namespace lockstep
