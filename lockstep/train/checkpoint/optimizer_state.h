// The state of an SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS optimizer, to and from a checkpoint.
// optimizer -> "optimizer.<parameter>.<field>", of a list "optimizer.<parameter>.<field>.<number>".
// Parameters count from 0 over all groups, in the optimizer's order, which must be the same when loading; so must the
// sizes of the groups, in the metadata "optimizer.groups", which older checkpoints lack. The learning rate of each
// group is stored too, since schedules change it; other options belong to the program. All that LBFGS
// remembers is at parameter 0, and is the same on all ranks only if their closures return the same loss.
// Does not block. Error{invalid_argument}: another kind of optimizer, or a checkpoint that does not fit, with all
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

// `numbers`, here and below: of an optimizer that has only some of the parameters that the checkpoint is of, the number
// of each of them; sizes of groups are neither stored nor compared then. Empty: all of them, in order.

// The checkpoint then refers to the optimizer's own memory: save it before training goes on.
void add_optimizer(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer,
                   std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {});

// Parameters without state in the checkpoint (no gradient ever reached them) have none afterwards.
void load_optimizer(const Checkpoint& checkpoint, torch::optim::Optimizer& optimizer,
                    std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {});

namespace internal {

// Base of optimizers that leave the ranks with different parameters. What is stored here is not all of their state.
class LocalStepsOptimizer {
 public:
  virtual ~LocalStepsOptimizer() = default;
};

// Base of optimizers whose state is spread over the ranks. Together the parts are what add_optimizer() stores of a
// plain optimizer.
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

// As load_optimizer(), but so far it only checks: what it returns then changes the optimizer, which must still be
// there. options: those that the optimizer gets with the state, but for the learning rates; empty: it keeps its own.
// whole: that of which the optimizer is a part, whose groups must be of the stored sizes.
std::function<void()> checked_load(const Checkpoint& checkpoint, torch::optim::Optimizer& optimizer,
                                   std::string_view prefix = "optimizer.", const std::vector<std::size_t>& numbers = {},
                                   const OptionsByGroup& options = {}, const torch::optim::Optimizer* whole = nullptr);

}  // namespace internal

}  // namespace lockstep
