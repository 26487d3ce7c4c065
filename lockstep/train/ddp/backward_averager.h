// The BackwardAverager averages the gradients of one backward after the other. reducer -> BackwardAverager -> buckets
// -> .grad. It receives the arrivals of gradients, launches buckets as they become complete, and waits for all at the
// end. Belongs to the thread that runs backward.
//
// Where ranks share memory nothing runs beside backward: each arrival does the share of reduction that has become
// possible, which on busy cores costs less than a second thread. The first backward shows in which order gradients
// come; buckets are then formed again in rank 0's order. An error ends the group, so that no other rank waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/autograd/forward_graphs.h"
#include "lockstep/train/ddp/backward_report.h"
#include "lockstep/train/ddp/bucket_list.h"
#include "lockstep/train/ddp/checks/all_finite.h"
#include "lockstep/train/ddp/contributions.h"
#include "lockstep/train/ddp/learned_graph.h"
#include "lockstep/train/ddp/logging_data.h"
#include "lockstep/train/ddp/model_hooks.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace lockstep::internal {

class BackwardAverager {
 public:
  // parameters, options, timer: outlive it. wrapper: see GradBucket.
  BackwardAverager(const TrainedParameters& parameters, ProcessGroup group, const DdpOptions& options, StepTimer& timer,
                   std::uint64_t wrapper);

  // REQUIRES: before the first backward.
  void set_hook(CommHook hook);
  bool has_hook() const { return static_cast<bool>(hook_); }

  // See Contributions.
  void agree_on_unit(double weight, bool synchronises) { contributions_.agree_on_unit(weight, synchronises); }

  // A backward through forwards of the wrapper begins, which `forwards` has found. hooks: show its graph.
  void begin(const ForwardNote& note, const ForwardGraphs& forwards, const ModelHooks& hooks);
  // The factor of gradients before it adds them.
  double factor() const { return contributions_.factor(); }
  // It has accumulated a gradient. added: the tensor that autograd added; undefined if a function gave none.
  void arrived(std::size_t parameter, const at::Tensor& added);
  // It has computed everything. Blocks until all averages are there. Returns the error that backward() throws although
  // they are.
  std::optional<Error> finish();
  // It has failed. Its reductions remain in flight until drain().
  void roll_back();
  // Waits for the reductions of a failed backward, and drops them.
  void drain();

  // A gradient has arrived in a backward that goes through no forward of the wrapper.
  void arrived_locally(std::size_t parameter, const at::Tensor& added);

  const ReducerStats& stats() const { return stats_; }
  std::vector<std::size_t> bucket_bytes() const { return buckets_.bytes(); }
  bool has_rebuilt_buckets() const { return learned_.has_order(); }

 private:
  void count_expected(const ModelHooks& hooks);
  void begin_synchronised(const ModelHooks& hooks);
  void own_gradient(std::size_t parameter, const at::Tensor& added);
  void count_arrival(std::size_t parameter);
  bool waits_for_order() const;
  void form_buckets();
  std::optional<Error> average();
  // added: the tensor just added to a gradient; null at the end of backward.
  void launch_ready(const at::Tensor* added);
  void complete_buckets();
  // The ranks' reports at the end of a backward; null if no option needs them.
  const JointReport* exchange_reports();
  // report_, of which `used` is as long on all ranks, for those of all. Blocks. Error{corrupt_data} on a rank that
  // receives an invalid report ends the group, so that no other waits for it.
  const JointReport& exchange(const CallOptions& call);
  Finish finish_of(const JointReport* joint);
  void exchange_weights();
  std::optional<Error> drop_if_not_finite();
  std::optional<Error> drop_gradients(const JointReport& joint);
  void check_gradient(std::size_t parameter) const;

  const TrainedParameters& parameters_;
  const ProcessGroup group_;
  const DdpOptions& options_;
  StepTimer& timer_;
  const std::string report_name_, unused_name_, weights_name_, finite_name_;  // of collectives
  CommHook hook_;
  BucketList buckets_;
  FiniteCheck finite_;  // of the gradients of this backward that buckets have sent
  Contributions contributions_;
  LearnedGraph learned_;
  std::uint64_t parameter_bytes_ = 0;

  // Of the backward that runs, or ran last.
  ForwardNote note_;
  std::uint64_t backward_ = 0;   // see ForwardGraphs::number()
  std::vector<int> arrivals_;    // by parameter: how often its gradient has arrived
  std::vector<int> expected_;    // by parameter: how often it will; empty: once
  std::vector<double> factors_;  // by parameter: of averages
  std::vector<bool> needed_;     // by parameter: with skip_all_reduce_unused_params, whether a rank will use it
  BackwardReport report_;
  JointReport joint_;
  // As bytes: of this rank, and of all. Kept from backward to backward.
  at::Tensor sent_, told_;

  ReducerStats stats_;
};

}  // namespace lockstep::internal
