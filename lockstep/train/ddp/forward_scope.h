// The duration of a wrapper's forward, and how the reducer learns of its outputs.
// DdpBase::begin_forward() -> ForwardScope -> reducer. Belongs to the thread of the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <type_traits>

#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/train/ddp/autograd/forward_graphs.h"
#include "lockstep/train/ddp/converted_arguments.h"
#include "lockstep/train/ddp/mixed_precision/precision_cast.h"
#include "lockstep/train/ddp/reducer.h"

namespace lockstep::internal {

class ThreadCount;

class ForwardScope {
 public:
  // Of a forward that does not concern the reducer.
  ForwardScope() = default;
  // Of one with gradients on. Activations are allocated in shared memory too: not for other ranks, but because that
  // memory is kept. malloc gives it back to the system and takes it again, page by page, every step.
  ForwardScope(std::shared_ptr<Reducer> reducer, ForwardGraphs::Id forward)
      : arena_(reducer->heap()), reducer_(std::move(reducer)), forward_(forward) {}
  // Of one with gradients on that no backward may go through.
  ForwardScope(std::shared_ptr<ForwardGraphs> graphs, ForwardGraphs::Id forward)
      : graphs_(std::move(graphs)), forward_(forward) {}
  // Of one without gradients in lockstep mode, which computes with as many threads as a shard does.
  explicit ForwardScope(std::shared_ptr<ThreadCount> threads) : threads_(std::move(threads)) {}
  // Of one without gradients, with which the parameters' compute type ends.
  explicit ForwardScope(std::shared_ptr<PrecisionCast> cast) : cast_(std::move(cast)) {}
  ~ForwardScope() {
    if (reducer_ != nullptr) reducer_->end_forward(forward_, has_returned_);
    if (graphs_ != nullptr) graphs_->end(forward_, has_returned_);
    if (cast_ != nullptr) cast_->restore_master_weights();
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  // The forward has computed its output, from which the loss will be computed. Looks for tensors in the containers that
  // models return; parameters among them are replaced by views.
  template <class Output>
  void has_returned(Output& output) {
    if (reducer_ != nullptr || graphs_ != nullptr) {
      convert_tensors_in(output, &with_node);
      watch(output);
    }
    has_returned_ = true;
  }

 private:
  template <class Output>
  void watch(const Output& output) {
    if constexpr (std::is_convertible_v<const Output&, const at::Tensor&>) {
      const at::Tensor& tensor = output;
      if (!tensor.defined()) return;
      reducer_ != nullptr ? reducer_->watch(forward_, tensor) : graphs_->watch(forward_, tensor);
    } else if constexpr (requires {
                           output.has_value();
                           *output;
                         }) {
      if (output.has_value()) watch(*output);
    } else if constexpr (requires {
                           output.begin();
                           output.end();
                         }) {
      for (const auto& element : output) watch(element);
    } else if constexpr (requires { std::tuple_size<Output>::value; }) {
      std::apply([&](const auto&... elements) { (watch(elements), ...); }, output);
    }
  }

  ArenaScope arena_{nullptr};
  std::shared_ptr<Reducer> reducer_;  // null if the forward does not concern it
  std::shared_ptr<ForwardGraphs> graphs_;
  ForwardGraphs::Id forward_ = 0;
  std::shared_ptr<PrecisionCast> cast_;
  std::shared_ptr<ThreadCount> threads_;
  bool has_returned_ = false;
};

}  // namespace lockstep::internal
