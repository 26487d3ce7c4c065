// What a DistributedDataParallel is and has done, for logs; names follow PyTorch's DDP logging data. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ddp/reducer.h"

namespace lockstep {

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
