// One forward through several replicas, and its backward. DataParallel -> pass -> replicas. Blocks until all replicas
// are done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/parallel/replica_pool.h"

namespace lockstep {

struct DataParallelOptions {
  int replicas = 2;
  std::int64_t dim = 0;  // along which the batch is cut
};

// What data parallelism in one process costs beside the computation; sums since the beginning.
struct DataParallelStats {
  std::uint64_t forwards = 0;
  std::uint64_t replicated_bytes = 0;  // buffers copied
  std::uint64_t gathered_bytes = 0;    // outputs copied
  std::uint64_t added_bytes = 0;       // gradients that the replicas' backward will have to add up
};

// See DataParallel.
at::Tensor data_parallel_forward(const std::shared_ptr<ReplicaPool>& pool, const at::Tensor& input,
                                 const DataParallelOptions& options, DataParallelStats& stats);

}  // namespace lockstep
