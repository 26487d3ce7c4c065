// Gathers the predictions of all ranks: one row for each sample of the data set, in its order.
//   lockstep::DistributedSampler sampler(test.size(), world, {.shuffle = false});
//   ... predictions of this rank, one row for each index of the sampler, in its order
//   const at::Tensor all = lockstep::gather_predictions(world, sampler, at::cat(predictions));   // on rank 0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/data/distributed_sampler.h"

namespace lockstep {

// On rank 0 as many rows as the data set has samples, without repeated samples; an undefined tensor elsewhere.
// Collective. Error{invalid_argument} on all ranks, and the group remains usable: a rank has another number of rows
// than its sampler has indices, rows are sparse, types or shapes differ, or the samplers are not of this group: not
// made for its ranks, each for its own; with other seeds, epochs or options; or with drop_last.
at::Tensor gather_predictions(const ProcessGroup& group, DistributedSampler& sampler, const at::Tensor& rows,
                              const CallOptions& options = {});

}  // namespace lockstep
