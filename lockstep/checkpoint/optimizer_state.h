// The state of an SGD, Adam or AdamW optimizer, to and from a checkpoint. optimizer -> "optimizer.<parameter>.<field>".
// Parameters count from 0 over all groups, in the optimizer's order, which must be the same when loading. The learning
// rate of each group is stored too, since schedules change it; other options belong to the program.
// Does not block. Error{invalid_argument}: another kind of optimizer, or a checkpoint that does not fit, with all
// differences listed; then the optimizer is unchanged.
#pragma once

#include <string_view>

#include "lockstep/checkpoint/checkpoint.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// The checkpoint then refers to the optimizer's own memory: save it before training goes on.
void add_optimizer(Checkpoint& checkpoint, const torch::optim::Optimizer& optimizer,
                   std::string_view prefix = "optimizer.");

// Parameters without state in the checkpoint (no gradient ever reached them) have none afterwards.
void load_optimizer(const Checkpoint& checkpoint, torch::optim::Optimizer& optimizer,
                    std::string_view prefix = "optimizer.");

}  // namespace lockstep
