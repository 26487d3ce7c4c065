// Settings and statistics of a DistributedDataParallel, for logs; names follow PyTorch's DDP logging data. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// The cost of synchronisation on this rank so far.
struct ReducerStats {
  std::uint64_t backwards = 0;       // that were synchronised
  std::uint64_t reduced_bytes = 0;   // gradients
  std::uint64_t copied_bytes = 0;    // of them, those that were not reduced in place
  std::uint64_t skipped_steps = 0;   // backwards whose gradients were dropped: some rank had NaN or Inf
  double communication_seconds = 0;  // in which this rank reduced or waited instead of computing
};

struct DdpLoggingData {
  int rank = 0;
  int world_size = 1;
  std::string backend_name;  // the group's transport
  std::size_t num_parameter_tensors = 0;
  std::size_t total_parameter_size_bytes = 0;
  std::vector<std::size_t> bucket_sizes;  // bytes, in the order of reduction
  bool has_rebuilt_buckets = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool has_comm_hook = false;
  ReducerStats stats;
};

}  // namespace lockstep
