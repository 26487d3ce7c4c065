// Count, mean and variance of each channel over the batches of all ranks, or in lockstep mode of all shards.
// batch -> local row -> all_gather -> global moments. After Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
// Algorithm for Computing Sample Variances", 1979: sums of squares are combined around means, so nothing is lost where
// a mean is large beside its deviation.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"

namespace lockstep::internal {

// Of [N, C, ...].
struct GlobalMoments {
  at::Tensor count;    // of the values of a channel: a scalar in float64
  at::Tensor mean;     // [C] in float64
  at::Tensor squares;  // [C] in float64: the sum of squared deviations from the mean
};

// The row that one rank, or shard, sends to the others, [1 + 2C] in float64: count, means, sums of squares. All zero
// for an empty batch.
at::Tensor local_row(const at::Tensor& input);

// rows: [ranks or shards, 1 + 2C]. Adds in their order. REQUIRES: some count is not zero.
GlobalMoments combine_rows(const at::Tensor& rows);

// Collective and blocking; the same bits on all ranks. Error{desync} on all of them if their channels differ in number,
// {invalid_argument} on all of them if there are fewer than two values a channel; the host waits for a device only to
// look at that, and not where this rank has two. layer: see sync_batch_norm().
GlobalMoments global_moments(const at::Tensor& input, const ProcessGroup& group,
                             const SyncBatchNormTag* layer = nullptr);

}  // namespace lockstep::internal
