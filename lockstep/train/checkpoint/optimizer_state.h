// The state of an SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS optimizer, to and from a checkpoint.
// optimizer -> "optimizer.<parameter>.<field>", for a list "optimizer.<parameter>.<field>.<number>".
// Parameters are numbered from 0 over all groups, in the optimizer's order, which must be the same when loading; so
// must the group sizes in the metadata "optimizer.groups", which older checkpoints lack. The learning rate of each
// group is stored too, since schedules change it; the program sets all other options. The state of LBFGS is stored at
// parameter 0, and is the same on all ranks only if their closures return the same loss.
// Does not block. Error{invalid_argument}: another kind of optimizer, or a checkpoint that does not match, with all
// differences listed; then the optimizer is unchanged.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace lockstep {

// `numbers`, here and below: for an optimizer of only some of the checkpoint's parameters, the number of each of them;
// group sizes are then neither stored nor compared. Empty: all parameters, in order.

// The checkpoint then refers to the optimizer's memory: save it before training continues.
void add_optimizer(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer,
                   std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {});

// Parameters without state in the checkpoint (they never had a gradient) have none afterwards.
void load_optimizer(const Checkpoint& checkpoint, torch::optim::Optimizer& optimizer,
                    std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {});

namespace internal {

// Base of optimizers that leave the ranks with different parameters. Only a part of their state is stored here.
class LocalStepsOptimizer {
 public:
  virtual ~LocalStepsOptimizer() = default;
};

// Base of optimizers whose state is spread over the ranks. Together, the parts equal the state that add_optimizer()
// stores for a plain optimizer.
class PartedOptimizer {
 public:
  virtual ~PartedOptimizer() = default;
  // This rank's part, under "optimizer.".
  virtual void add_part(Checkpoint& checkpoint) const = 0;
  // As checked_load() below, of a checkpoint with at least this rank's part. Does not communicate.
  virtual std::function<void()> checked_load_part(const Checkpoint& checkpoint) = 0;
};

// Of each group.
using OptionsByGroup = std::vector<std::shared_ptr<const torch::optim::OptimizerOptions>>;

// Stores the sizes of this optimizer's groups, in place of others.
void set_group_sizes(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer, std::string_view prefix);

// As load_optimizer(), but it only checks: the returned function then changes the optimizer, which must still exist.
// options: the optimizer's new options, except for learning rates; empty: it keeps its own. whole: the optimizer that
// this one is a part of, whose groups must have the stored sizes.
std::function<void()> checked_load(const Checkpoint& checkpoint, torch::optim::Optimizer& optimizer,
                                   std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {},
                                   const OptionsByGroup& options = {}, const torch::optim::Optimizer* whole = nullptr);

}  // namespace internal

}  // namespace lockstep
