// The Reducer finds out which backwards are to be averaged, and has a BackwardAverager do it while they run.
// hooks -> Reducer -> BackwardAverager -> .grad. Belongs to the thread that runs forward and backward; one backward at
// a time.
//
// Its states and events are a table: backward_machine.h. A backward is synchronised if it goes through the graph of a
// synchronised forward of the wrapper (forward_graphs.h), whichever thread runs it and however many forwards it joins;
// gradients that come otherwise, as from the bare module or autograd::grad, are left alone.
//
// The gradients of parameters are complete and equal on all ranks when backward() returns; backward() throws failures.
// A backward that throws leaves nothing behind: its reductions are awaited and dropped before the next one.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/train/ddp/autograd/failed_backward.h"
#include "lockstep/train/ddp/autograd/forward_graphs.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/backward_averager.h"
#include "lockstep/train/ddp/backward_machine.h"
#include "lockstep/train/ddp/mixed_precision/precision_cast.h"
#include "lockstep/train/ddp/model_hooks.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace lockstep::internal {

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Hooks the parameters until it is destroyed. cast: null if the model computes in its parameters' type. wrapper: see
  // GradBucket.
  static std::shared_ptr<Reducer> make(TrainedParameters parameters, ProcessGroup group, const DdpOptions& options,
                                       std::shared_ptr<PrecisionCast> cast, std::shared_ptr<StepTimer> timer,
                                       std::uint64_t wrapper);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Error{invalid_argument} on all ranks if gradients of a parameter would no longer come here.
  void check_parameters() const;
  // Before each forward with gradients on. Error{invalid_argument} if the last backward bypassed the wrapper.
  ForwardGraphs::Id begin_forward(const ForwardNote& note);
  // One of the tensors that the loss will be computed from.
  void watch(ForwardGraphs::Id forward, const at::Tensor& output) { forwards_->watch(forward, output); }
  void end_forward(ForwardGraphs::Id forward, bool has_returned);
  // To be called when a backward begins that averages, and goes through forwards in evaluation only. May throw; may be
  // empty.
  void before_averages_in_evaluation(std::function<void()> call) { before_in_evaluation_ = std::move(call); }
  // Where gradients are allocated; nullptr if the ranks share no memory.
  const std::shared_ptr<ArenaHeap>& heap() const { return heap_; }

  BackwardAverager& averager() { return averager_; }

 private:
  Reducer(TrainedParameters parameters, ProcessGroup group, const DdpOptions& options,
          std::shared_ptr<PrecisionCast> cast, std::shared_ptr<StepTimer> timer, std::uint64_t wrapper);
  void install_hooks();

  // Events, and their actions.
  BackwardAction take(BackwardEvent event);
  bool is_in_own_backward(std::optional<ForwardGraphs::Id> reached);
  bool counts(ForwardGraphs::Id forward) const;
  void differentiate_inputs(ForwardGraphs::Id forward);
  void inputs_differentiated();
  void start(const ForwardNote& note);
  void gradient_arrived(std::size_t parameter, const at::Tensor& added);
  void count_stray(int backward);
  void end_backward();
  void backward_lost() noexcept;
  void abandon_if_lost_elsewhere();
  void abandon() noexcept;
  void release_backward();
  void restore_master_weights();

  const ProcessGroup group_;
  const DdpOptions options_;
  const TrainedParameters parameters_;
  const std::shared_ptr<PrecisionCast> cast_;
  const std::shared_ptr<StepTimer> timer_;
  const std::shared_ptr<ArenaHeap> heap_;
  BackwardAverager averager_;
  std::optional<ForwardGraphs> forwards_;
  std::optional<ModelHooks> hooks_;
  std::optional<EndOfBackward> end_;
  std::optional<EndOfBackward> end_of_inputs_gradients_;
  FailedBackward failed_;
  std::function<void()> before_in_evaluation_;

  BackwardState state_ = BackwardState::idle;
  std::atomic<bool> is_lost_elsewhere_ = false;  // the backward ended early, as another thread has seen
  int stray_backward_ = -1;                      // the last one that went through no forward of the wrapper
  bool has_stray_gradients_ = false;             // since the last forward
  int strays_before_first_ = 0;                  // such backwards; after the first one through the wrapper not counted
  std::thread::id thread_;                       // of the backward that runs, or ran last
  std::optional<ArenaScope> arena_scope_;        // while a backward runs
};

}  // namespace lockstep::internal
