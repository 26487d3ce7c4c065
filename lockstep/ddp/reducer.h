// The Reducer averages a model's gradients over all ranks while backward computes them. hooks -> buckets -> group ->
// .grad Belongs to the thread that runs forward and backward; one backward at a time.
//
// Buckets are started in their planned order as soon as all their gradients are there. Where ranks share memory nothing
// runs beside backward: each hook does the share of reduction that has become possible, which on busy cores costs less
// than a second thread. The gradients of parameters are complete and equal on all ranks when backward() returns; what
// goes wrong, backward() throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ddp/gradient_bucket.h"
#include "lockstep/ddp/gradient_hooks.h"
#include "lockstep/ddp/model_state.h"
#include "lockstep/ddp/options.h"
#include "lockstep/group/arena_allocator.h"

namespace lockstep {

// What synchronising has cost this rank so far.
struct ReducerStats {
  std::uint64_t backwards = 0;       // that were synchronised
  std::uint64_t reduced_bytes = 0;   // gradients
  std::uint64_t copied_bytes = 0;    // of them, those that did not lie in shared memory
  double communication_seconds = 0;  // in which this rank reduced or waited instead of computing
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // `parameters`: those that require a gradient. Hooks are installed by make().
  static std::shared_ptr<Reducer> make(const NamedTensors& parameters, ProcessGroup group, const DdpOptions& options);

  // Before each forward: whether the backward that follows synchronises.
  void prepare(bool synchronise);
  // Where gradients are born; nullptr if the ranks share no memory.
  std::shared_ptr<ArenaHeap> heap() const;
  // When backward reaches the model's output: from here on gradients are born in shared memory.
  void begin_backward();

  const ReducerStats& stats() const { return stats_; }

 private:
  enum class Phase { idle, collecting };

  Reducer(const NamedTensors& parameters, ProcessGroup group, const DdpOptions& options);
  void install_hooks();
  void gradient_ready(std::size_t parameter);
  void launch_ready_buckets();
  void end_backward();
  void check_all_ready();
  void check_gradient(std::size_t parameter) const;
  void open_arena();
  void close_arena();

  const ProcessGroup group_;
  NamedTensors parameters_;
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<GradientBucket> buckets_;
  std::vector<GradientHook> hooks_;

  Phase phase_ = Phase::idle;
  bool synchronise_ = true;
  std::vector<bool> ready_;   // by parameter, in this backward
  std::size_t launched_ = 0;  // buckets, in this backward
  std::optional<ArenaScope> arena_scope_;
  std::thread::id arena_thread_;
  ReducerStats stats_;
};

}  // namespace lockstep
