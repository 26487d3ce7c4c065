// The Reducer averages a model's gradients over all ranks while backward computes them.
// hooks -> buckets -> group -> .grad. Belongs to the thread that runs forward and backward; one backward at a time.
//
// What it does when is a table: backward_machine.h. A backward is synchronised if it goes through the graph of a
// synchronised forward of the wrapper (forward_graphs.h), whichever thread runs it and however many forwards it joins;
// gradients that come otherwise, as from the bare module or autograd::grad, are left alone.
//
// Buckets are started in their planned order as soon as all their gradients are there. Where ranks share memory nothing
// runs beside backward: each hook does the share of reduction that has become possible, which on busy cores costs less
// than a second thread. The gradients of parameters are complete and equal on all ranks when backward() returns; what
// goes wrong, backward() throws. A backward that throws leaves nothing behind: what it had started is awaited and
// dropped before the next one. The first backward shows in which order gradients come; buckets are then formed anew in
// rank 0's order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/autograd/failed_backward.h"
#include "lockstep/ddp/autograd/forward_graphs.h"
#include "lockstep/ddp/autograd/gradient_hooks.h"
#include "lockstep/ddp/backward_machine.h"
#include "lockstep/ddp/buckets/bucket_plan.h"
#include "lockstep/ddp/buckets/gradient_bucket.h"
#include "lockstep/ddp/hooks/comm_hook.h"
#include "lockstep/ddp/mixed_precision/precision_cast.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/report_exchange.h"
#include "lockstep/group/arena_allocator.h"

namespace lockstep {

// What synchronising has cost this rank so far.
struct ReducerStats {
  std::uint64_t backwards = 0;       // that were synchronised
  std::uint64_t reduced_bytes = 0;   // gradients
  std::uint64_t copied_bytes = 0;    // of them, those that were not reduced where they lay
  std::uint64_t skipped_steps = 0;   // backwards whose gradients were dropped: some rank had NaN or Inf
  double communication_seconds = 0;  // in which this rank reduced or waited instead of computing
};

struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;   // its gradients are
  bool delayed = false;  // see DdpOptions::delay_all_reduce_named_params
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Hooks are installed by make(). swap: null if the model computes in its parameters' type.
  static std::shared_ptr<Reducer> make(std::vector<TrainedParameter> parameters, ProcessGroup group,
                                       const DdpOptions& options, std::shared_ptr<PrecisionCast> swap);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before each forward with gradients on. Error{invalid_argument} if the last backward passed the wrapper by.
  ForwardGraphs::Id begin_forward(const ForwardNote& note);
  // One of the tensors that the loss will be computed from.
  void watch(ForwardGraphs::Id forward, const at::Tensor& output);
  void end_forward(ForwardGraphs::Id forward, bool has_returned);
  // Where gradients are born; nullptr if the ranks share no memory.
  std::shared_ptr<ArenaHeap> heap() const;

  // REQUIRES: before the first backward.
  void set_hook(CommHook hook);
  bool has_hook() const { return static_cast<bool>(hook_); }

  const ReducerStats& stats() const { return stats_; }
  // In the order of reduction.
  std::vector<std::size_t> bucket_bytes() const;
  bool has_rebuilt_buckets() const { return rebuilt_; }

 private:
  struct Place {
    std::size_t bucket;
    std::size_t member;
  };
  struct LowHook {
    std::size_t parameter;
    GradientHook hook;
  };

  Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, const DdpOptions& options,
          std::shared_ptr<PrecisionCast> swap);
  void install_hooks();
  void form_buckets(const std::vector<std::size_t>& order);
  std::unique_ptr<GradientBucket> make_bucket(std::size_t index, std::vector<BucketMember> members) const;
  GradientBucket& bucket_of(std::size_t parameter) { return *buckets_[places_[parameter].bucket]; }
  void set_ready(std::size_t parameter, bool fired);

  // Events, and what they lead to.
  BackwardAction take(BackwardEvent event);
  void output_reached(ForwardGraphs::Id forward);
  bool is_in_own_backward(std::optional<ForwardGraphs::Id> reached);
  void differentiate_inputs(ForwardGraphs::Id forward);
  void inputs_differentiated();
  void start(const ForwardNote& note);
  void gradient_arrived(std::size_t parameter, const at::Tensor& added);
  double gradient_factor();
  void end_backward();
  std::optional<Error> finish();
  void backward_lost() noexcept;
  void abandon() noexcept;
  void let_go();
  void drain();

  void begin_synchronised();
  void count_expected();
  void set_aside_gradients();
  void own_gradient(std::size_t parameter, const at::Tensor& added);
  bool is_skipped(const GradientBucket& bucket) const;
  // added: what has just been added to a gradient; null at the end of backward.
  void launch_ready_buckets(const at::Tensor* added);
  template <class Call>
  void or_fail_everywhere(Call&& call);
  void complete_buckets();
  // Null if no option asks for it.
  const JointReport* exchange_reports();
  void finish_buckets(const JointReport* joint);
  void add_set_aside();
  std::optional<Error> drop_gradients(const JointReport& joint);
  void learn(const JointReport* joint);

  void restore_precision();
  bool is_weighted() const { return options_.weighting == Weighting::samples || note_.over_active; }
  void check_gradient(std::size_t parameter);
  [[noreturn]] void fail(const Error& error);

  const ProcessGroup group_;
  const DdpOptions options_;
  const std::vector<TrainedParameter> parameters_;
  const std::shared_ptr<PrecisionCast> swap_;
  CommHook hook_;
  std::vector<PlannedParameter> planned_;
  std::uint64_t parameter_bytes_ = 0;
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::vector<Place> places_;        // by parameter
  std::vector<GradientHook> hooks_;  // by parameter
  std::vector<LowHook> low_hooks_;   // of parameters that have a lower type in forward and backward
  std::vector<GradientScale> scales_;
  std::optional<EndOfBackward> end_;
  std::optional<EndOfBackward> end_of_inputs_gradients_;
  std::optional<ForwardGraphs> forwards_;
  FailedBackward failed_;

  BackwardState state_ = BackwardState::idle;
  std::atomic<bool> is_lost_elsewhere_ = false;  // the backward ended early, as another thread has seen
  int stray_backward_ = -1;                      // the last one that went through no forward of the wrapper
  bool has_stray_gradients_ = false;             // since the last forward
  // Of the backward that runs, or ran last.
  ForwardNote note_;
  std::thread::id thread_;
  std::uint64_t backward_ = 0;         // counts those that were synchronised, the failed ones too
  std::vector<int> fired_;             // by parameter: how often its gradient arrived
  std::vector<int> expected_;          // by parameter: how often it will; empty: once
  std::size_t launched_ = 0;           // buckets
  std::vector<bool> reached_;          // by parameter: with skip_all_reduce_unused_params, what some rank will use
  std::vector<at::Tensor> set_aside_;  // by parameter: what was averaged before, where gradients are weighted
  BackwardReport report_;
  ReportExchange reports_;
  std::optional<ArenaScope> arena_scope_;

  // Since the last synchronised backward.
  std::vector<bool> used_;         // by parameter
  std::vector<bool> used_before_;  // and before the backward that runs
  double weight_ = 0;              // of what has been added up
  double weight_before_ = 0;
  bool is_first_ = true;              // nothing has been added up
  bool has_local_gradients_ = false;  // some came by backwards outside the wrapper

  std::optional<double> unit_weight_;  // rank 0's first weight, which counts as 1
  std::vector<std::size_t> arrivals_;  // parameters in the order of the first backward
  bool rebuilt_ = false;
  bool learning_ = false;        // static_graph: the first synchronised backward has not been
  std::vector<int> in_first_;    // static_graph: how often each parameter's gradient arrived in it
  std::vector<bool> ever_used_;  // static_graph: by some rank
  ReducerStats stats_;
};

}  // namespace lockstep
