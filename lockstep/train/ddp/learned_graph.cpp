#include "lockstep/train/ddp/learned_graph.h"

#include <ATen/ops/tensor.h>

#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/comm/group/believed.h"
#include "lockstep/train/ddp/buckets/bucket_plan.h"

namespace lockstep::internal {

LearnedGraph::LearnedGraph(std::size_t parameters, const DdpOptions& options)
    : parameters_(parameters),
      keeps_order_(!options.find_unused_parameters || options.static_graph),
      is_first_(options.static_graph) {
  order_.reserve(parameters);
}

void LearnedGraph::begin_backward() {
  if (!has_order_) order_.clear();
}

void LearnedGraph::note_arrival(std::size_t parameter) {
  if (!has_order_) order_.push_back(parameter);
}

void LearnedGraph::learn_use(const std::vector<int>& arrivals, const std::vector<bool>* used) {
  if (!std::exchange(is_first_, false)) return;
  arrivals_ = arrivals;
  used_ = *used;
}

std::optional<std::vector<std::size_t>> LearnedGraph::learn_order(const ProcessGroup& group) {
  if (std::exchange(has_order_, true) || !keeps_order_) return {};
  std::vector<bool> arrived(parameters_);
  for (const std::size_t i : order_) arrived[i] = true;
  for (const std::size_t i : reversed_order(parameters_)) {
    if (!arrived[i]) order_.push_back(i);
  }
  const at::Tensor order = at::tensor(std::vector<std::int64_t>(order_.begin(), order_.end()), at::kLong);
  group.broadcast(order, 0, {.name = "DDP order of gradients"});
  const std::span told(order.const_data_ptr<std::int64_t>(), parameters_);
  return believed(group, [&] { return checked_permutation(told, "parameter", {"order of gradients", 0}); });
}

}  // namespace lockstep::internal
