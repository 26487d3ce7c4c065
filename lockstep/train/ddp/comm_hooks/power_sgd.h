// PowerSGD: a communication hook that sends a gradient matrix as two thin ones, and adds the approximation error to the
// next gradient. After Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
// NeurIPS 2019, as torch.distributed's powerSGD_hook does it, with the same random numbers.
//
//   lockstep::PowerSgd power_sgd({.matrix_approximation_rank = 4, .start_power_sgd_iter = 100});
//   ddp.register_comm_hook(power_sgd.hook());
//
// A copyable handle: copies and hooks share one state, which serves one model. Belongs to the thread that runs
// backward. Equal on all ranks, apart from the errors that each one remembers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

namespace lockstep {

// Names and defaults are PyTorch's.
struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;
  // The number of first iterations that average uncompressed gradients, since the first steps of training matter most.
  std::int64_t start_power_sgd_iter = 1000;
  // An n x m gradient is sent as it is unless (n + m) * rank * min_compression_rate < n * m.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;  // an iteration begins with the last one's Q, not a random one
  // Added to the lengths of columns before divisions by them. Columns of zeros are safe without it.
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;
  std::int64_t compression_stats_logging_frequency = 10'000;  // iterations, on rank 0
  bool batch_tensors_with_same_shape = false;                 // fewer, larger matrix products
};

struct CompressionStats {
  std::int64_t elements_before = 0, elements_after = 0;  // to be sent, and sent
  double rate() const { return elements_after == 0 ? 0 : static_cast<double>(elements_before) / elements_after; }
};

class PowerSgd {
 public:
  // Error{invalid_argument}: invalid numbers, and fewer than two plain iterations with error feedback or warm start,
  // since buckets may change until then.
  explicit PowerSgd(const PowerSgdOptions& options = {});

  // Each gradient by itself: all but its first dimension are taken as one. Takes real gradients only, and throws
  // Error{invalid_argument} if a bucket does not match the remembered one, or belongs to another wrapper.
  CommHook hook() const;
  // Each bucket as one square matrix: fewer products, a worse approximation.
  CommHook batched_hook() const;

  CompressionStats compression_stats() const;

  // Copies of its state, by names that begin with the prefix. Store it in a checkpoint of this rank.
  std::map<std::string, at::Tensor> state(std::string_view prefix = "power_sgd.") const;
  // Continues from the state, bit for bit, with equal options; on all ranks or none. If a rank lacks its own state, or
  // the number of ranks has changed, errors are dropped on all ranks. Other names are ignored. Error{invalid_argument}
  // for an incomplete or invalid state; then nothing changes.
  void load_state(const std::map<std::string, at::Tensor>& tensors, std::string_view prefix = "power_sgd.");

 private:
  class Compressor;

  std::shared_ptr<Compressor> compressor_;
};

}  // namespace lockstep
