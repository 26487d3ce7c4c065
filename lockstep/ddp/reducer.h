// The Reducer averages a model's gradients over all ranks while backward computes them. hooks -> buckets -> group ->
// .grad Belongs to the thread that runs forward and backward; one backward at a time.
//
// Buckets are started in their planned order as soon as all their gradients are there. Where ranks share memory nothing
// runs beside backward: each hook does the share of reduction that has become possible, which on busy cores costs less
// than a second thread. The gradients of parameters are complete and equal on all ranks when backward() returns; what
// goes wrong, backward() throws. The first backward shows in which order gradients come; buckets are then formed anew
// in rank 0's order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ddp/backward_report.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/gradient_bucket.h"
#include "lockstep/ddp/gradient_hooks.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/precision_swap.h"
#include "lockstep/group/arena_allocator.h"

namespace lockstep {

// What synchronising has cost this rank so far.
struct ReducerStats {
  std::uint64_t backwards = 0;       // that were synchronised
  std::uint64_t reduced_bytes = 0;   // gradients
  std::uint64_t copied_bytes = 0;    // of them, those that did not lie in shared memory
  std::uint64_t skipped_steps = 0;   // backwards whose gradients were dropped: some rank had NaN or Inf
  double communication_seconds = 0;  // in which this rank reduced or waited instead of computing
};

struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;   // its gradients are
  bool delayed = false;  // see DdpOptions::delay_all_reduce_named_params
};

// What a forward tells about the backward that follows.
struct ForwardNote {
  bool synchronise = true;
  bool silent = false;       // contribute nothing: see shadow.h
  double weight = 1;         // of this rank's gradients, where gradients are weighted by samples
  bool over_active = false;  // divide by the ranks that are not silent, instead of all
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Hooks are installed by make(). swap: null if the model computes in its parameters' type.
  static std::shared_ptr<Reducer> make(std::vector<TrainedParameter> parameters, ProcessGroup group,
                                       const DdpOptions& options, std::shared_ptr<PrecisionSwap> swap);

  // Before each forward.
  void prepare(const ForwardNote& note);
  // After it: one of the tensors that the loss will be computed from.
  void watch(const at::Tensor& output);
  // Where gradients are born; nullptr if the ranks share no memory.
  std::shared_ptr<ArenaHeap> heap() const;
  // When backward reaches the model's output: from here on gradients are born in shared memory.
  void begin_backward();

  // REQUIRES: before the first backward.
  void set_hook(CommHook hook);
  bool has_hook() const { return static_cast<bool>(hook_); }

  const ReducerStats& stats() const { return stats_; }
  // In the order of reduction.
  std::vector<std::size_t> bucket_bytes() const;
  bool has_rebuilt_buckets() const { return rebuilt_; }

 private:
  enum class Phase { idle, collecting };
  struct Place {
    std::size_t bucket;
    std::size_t member;
  };

  Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, const DdpOptions& options,
          std::shared_ptr<PrecisionSwap> swap);
  void install_hooks();
  void form_buckets(const std::vector<std::size_t>& order);
  std::unique_ptr<GradientBucket> make_bucket(std::size_t index, std::vector<BucketMember> members) const;
  GradientBucket& bucket_of(std::size_t parameter) { return *buckets_[places_[parameter].bucket]; }
  void set_ready(std::size_t parameter, bool fired);

  void gradient_ready(std::size_t parameter);
  void begin_synchronised();
  bool is_skipped(const GradientBucket& bucket) const;
  void launch_ready_buckets();
  template <class Call>
  void or_fail_everywhere(Call&& call);

  void end_backward();
  void complete_buckets();
  // Null if no option asks for it.
  const JointReport* exchange_reports();
  void finish_buckets(const JointReport* joint);
  void drop_gradients(const JointReport& joint);
  void learn(const JointReport* joint);

  void check_gradient(std::size_t parameter);
  [[noreturn]] void fail(const Error& error);
  void open_arena();
  void close_arena();

  const ProcessGroup group_;
  const DdpOptions options_;
  const std::vector<TrainedParameter> parameters_;
  const std::shared_ptr<PrecisionSwap> swap_;
  CommHook hook_;
  std::vector<PlannedParameter> planned_;
  std::uint64_t parameter_bytes_ = 0;
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::vector<Place> places_;  // by parameter
  std::vector<GradientHook> hooks_;
  std::vector<GradientScale> scales_;
  std::optional<ParameterSearch> search_;  // where parameters may be unused
  std::shared_ptr<const std::function<void()>> on_begin_;
  std::optional<EndOfBackward> end_;

  ForwardNote note_;
  Phase phase_ = Phase::idle;
  std::vector<int> fired_;             // by parameter: how often, in this backward
  std::vector<bool> used_;             // by parameter: whether since the last synchronised backward
  std::vector<std::size_t> arrivals_;  // parameters in the order of the first backward
  std::size_t launched_ = 0;           // buckets, in this backward
  double weight_ = 0;                  // of what has been added up since the last synchronised backward
  std::optional<double> unit_weight_;  // rank 0's first weight, which counts as 1
  BackwardReport report_;
  ReportExchange reports_;
  std::vector<bool> reached_;  // by parameter: with skip_all_reduce_unused_params, what some rank will use

  bool rebuilt_ = false;
  bool learning_ = false;        // static_graph: the first synchronised backward has not been
  std::vector<int> expected_;    // static_graph: how often each parameter fires
  std::vector<bool> ever_used_;  // static_graph: by some rank
  std::optional<ArenaScope> arena_scope_;
  std::thread::id arena_thread_;
  ReducerStats stats_;
};

}  // namespace lockstep
