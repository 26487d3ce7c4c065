// Facts that the first synchronised backward shows for all later ones: in which order gradients come and, with
// static_graph, which parameters are used and how often each gets a gradient. Belongs to the thread that runs backward.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/options.h"

namespace lockstep::internal {

class LearnedGraph {
 public:
  LearnedGraph(std::size_t parameters, const DdpOptions& options);

  // A backward begins.
  void begin_backward();
  // A parameter's first gradient of that backward.
  void note_arrival(std::size_t parameter);

  // static_graph: the first synchronised backward has not been finished.
  bool is_first() const { return is_first_; }
  // static_graph: by parameter, how many gradients it got in the first backward.
  const std::vector<int>& arrivals() const { return arrivals_; }
  // static_graph: by parameter, whether some rank used it in the first backward. Empty before, and without
  // static_graph.
  const std::vector<bool>& used() const { return used_; }
  bool has_order() const { return has_order_; }

  // The first synchronised backward has given all gradients, and learn_order() will give an order.
  bool awaits_order() const { return keeps_order_ && !has_order_; }
  // Returns the order in which rank 0's gradients came, once; not with find_unused_parameters, where it changes.
  // Collective.
  std::optional<std::vector<std::size_t>> learn_order(const ProcessGroup& group);
  // A synchronised backward is over. arrivals: by parameter. used: by some rank; REQUIRES it if is_first().
  void learn_use(const std::vector<int>& arrivals, const std::vector<bool>* used);

 private:
  const std::size_t parameters_;
  const bool keeps_order_;  // gradients come in the same order in every backward
  bool is_first_;
  bool has_order_ = false;
  std::vector<std::size_t> order_;  // of the parameters whose gradients have arrived
  std::vector<int> arrivals_;
  std::vector<bool> used_;
};

}  // namespace lockstep::internal
