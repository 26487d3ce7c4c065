// What a DistributedDataParallel can be told. Names and defaults follow torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <optional>

namespace lockstep {

enum class Bucketing { on, off };  // off: every parameter is reduced by itself, as soon as its gradient is there

struct DdpOptions {
  // Gradients are reduced in buckets of about this many MiB. Unset: 25, and a first bucket of 1, so that reduction
  // begins early.
  std::optional<double> bucket_cap_mb = {};
  Bucketing bucketing = Bucketing::on;
  // Copy rank 0's parameters and buffers to all ranks at construction. Shapes are compared either way.
  bool init_sync = true;
  // Copy rank 0's buffers (batch-norm statistics) to all ranks before a forward in training, and before the first one
  // after it.
  bool forward_sync_buffers = true;
};

}  // namespace lockstep
