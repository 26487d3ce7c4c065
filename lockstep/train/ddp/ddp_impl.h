// The state of a DistributedDataParallel, and the steps of its forwards. Internal to ddp/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lockstep/train/ddp/ddp_base.h"
#include "lockstep/train/ddp/mixed_precision/precision_cast.h"
#include "lockstep/train/ddp/owned_parameters.h"
#include "lockstep/train/ddp/reducer.h"
#include "lockstep/train/ddp/timing/step_timer.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"
#include "lockstep/train/ddp/value_bytes.h"

namespace lockstep {

struct DdpBase::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, const DdpOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  internal::ShardedStep& sharded();
  bool synchronises() const { return *no_sync_guards_ == 0; }
  void make_models_equal(const NamedTensors& buffers);
  void warn_of_equal_inputs(const at::Tensor* input);
  void compare_parameters_at_times(std::uint64_t backwards);
  internal::ActiveRank active_rank(bool updates) const;
  void sync_buffers();
  void sync_buffers_of_forward(bool updates);
  double for_each_shard(const std::function<double(Shard)>& body);
  ReducerStats stats() const;
  internal::ForwardScope begin_forward(const at::Tensor* input, std::optional<double> samples_told);
  std::shared_ptr<internal::ThreadCount> shard_threads() const;

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const DdpOptions options_;
  std::uint64_t number_ = 1;  // see GradBucket::wrapper()
  std::optional<internal::OwnedParameters> owned_;
  std::optional<internal::ValueBytes> buffers_;  // that are copied from one rank, if any
  internal::ActiveRank buffers_from_;            // that rank
  std::optional<at::Device> input_device_;
  bool buffers_synced_ = true;
  std::shared_ptr<int> no_sync_guards_ = std::make_shared<int>(0);  // that exist
  bool inputs_seen_ = false, own_buffers_told_ = false;
  std::optional<double> weight_;
  std::uint64_t compared_after_ = 0;               // backwards
  std::shared_ptr<internal::PrecisionCast> cast_;  // null if the module computes in its parameters' type
  std::shared_ptr<internal::StepTimer> timer_;
  std::shared_ptr<internal::Reducer> reducer_;  // null if nothing is averaged: in a group of one, and in lockstep mode
  std::unique_ptr<internal::ShardedStep> sharded_;  // in lockstep mode
  std::uint64_t sharded_steps_ = 0;                 // that this object has made
};

}  // namespace lockstep
