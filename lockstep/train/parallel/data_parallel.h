// DataParallel computes a module on parts of a batch at the same time, in one process: the batch is scattered along a
// dimension, replicas of the module compute the parts in threads, the outputs are gathered, and backward, in threads
// too, adds the replicas' gradients up in the module's own.
//
//   lockstep::DataParallel parallel(model, {.replicas = 4});
//   cross_entropy(parallel(x), y).backward();  // the same gradients in `model` as model(x) gives
//
// As many replicas as torch has threads (at::get_num_threads()) compute at a time, and share these threads. As in
// torch.nn.DataParallel a batch smaller than the number of replicas leaves some out, batch norm sees one part at a
// time, and of buffers that forward changes the first replica's are kept. It does not replace training with several
// processes: batch, outputs and gradients all pass through one process; see DistributedDataParallel.
//
// One thread uses it at a time. Forward and backward throw a replica's exception as Error{invalid_argument} with the
// replica's number, the original nested in it. A module on several devices, or with synchronised batch norm, is
// refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/train/parallel/replica_pool.h"

namespace lockstep {

struct DataParallelOptions {
  int replicas = 2;
  std::int64_t dim = 0;  // along which the batch is cut
};

// The cost of data parallelism in one process, without the computation; sums since construction.
struct DataParallelStats {
  std::uint64_t forwards = 0;
  std::uint64_t replicated_bytes = 0;  // buffers copied
  std::uint64_t gathered_bytes = 0;    // outputs copied
  std::uint64_t added_bytes = 0;       // gradients that the replicas' backward must add up
};

// One forward through several replicas, and its backward: see DataParallel. Blocks until all replicas are done.
at::Tensor data_parallel_forward(const std::shared_ptr<internal::ReplicaPool>& pool, const at::Tensor& input,
                                 const DataParallelOptions& options, DataParallelStats& stats);

// Module: a module holder (TORCH_MODULE) or a std::shared_ptr to a module, whose forward() takes and returns a tensor.
template <class Module>
class DataParallel {
 public:
  // make: builds the same model again, for replicas. Without it the module is cloned, which torch::nn::Cloneable can;
  // other members have the values of that time.
  explicit DataParallel(Module module, const DataParallelOptions& options = {},
                        std::function<std::type_identity_t<Module>()> make = {})
      : module_(std::move(module)), options_(options) {
    if (!make) {
      // The pool must not keep this object, which may be moved.
      make = [original = module_] { return Module(std::dynamic_pointer_cast<Contained>(original->clone())); };
    }
    pool_ =
        std::make_shared<internal::ReplicaPool>(pointer(module_), [make = std::move(make)] { return replica(make()); });
  }

  // The output's parts lie along the same dimension as the input's; numbers make a vector with one for each replica.
  at::Tensor forward(const at::Tensor& input) { return data_parallel_forward(pool_, input, options_, stats_); }
  at::Tensor operator()(const at::Tensor& input) { return forward(input); }

  const Module& module() const { return module_; }
  const DataParallelStats& stats() const { return stats_; }

 private:
  using Contained = std::remove_cvref_t<decltype(*std::declval<Module&>())>;

  static std::shared_ptr<Contained> pointer(const Module& module) {
    if constexpr (requires { module.ptr(); }) {
      return module.ptr();
    } else {
      return module;
    }
  }
  static internal::ModuleReplica replica(const Module& module) {
    const auto made = pointer(module);
    return {made, [made](const at::Tensor& input) { return made->forward(input); }};
  }

  Module module_;
  DataParallelOptions options_;
  std::shared_ptr<internal::ReplicaPool> pool_;
  DataParallelStats stats_;
};

// For once.
template <class Module>
at::Tensor data_parallel(const Module& module, const at::Tensor& input, const DataParallelOptions& options = {}) {
  return DataParallel<Module>(module, options).forward(input);
}

}  // namespace lockstep
