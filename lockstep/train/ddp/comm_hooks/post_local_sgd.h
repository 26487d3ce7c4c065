// Post-local SGD's part in gradients: averaged over all ranks at first and, from start_step on, only within a small
// group, such as the ranks of one node; parameters are then averaged over all ranks from time to time, by a
// ModelAverager or a PostLocalSgdOptimizer. bucket -> hook -> all ranks or subgroup. Between these the ranks'
// parameters differ, so a DistributedDataParallel must not compare them: {.compare_parameters_every = 0}. After
// torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

namespace lockstep {

// The same on all ranks, except the subgroup. Changed by the hook; belongs to the thread of backward.
struct PostLocalSgdState {
  std::int64_t start_step = 0;
  // The group that averages gradients afterwards, for example world.group().split(world.membership().node_rank).
  // Without it, each rank keeps its own gradients.
  std::optional<ProcessGroup> subgroup = {};
  // The number of backwards so far, counted until start_step; to be saved and restored with the model.
  std::int64_t step = 0;
};

// REQUIRES: state is not null. Fails as ProcessGroup's calls do; Error{invalid_argument} from start_step on if
// gradients are weighted.
CommHook post_local_sgd_hook(std::shared_ptr<PostLocalSgdState> state);

}  // namespace lockstep
