#include "lockstep/comm/collective/topology.h"

#include <algorithm>
#include <numeric>

namespace lockstep::internal {

Topology::Topology(int size) : node_of_(static_cast<std::size_t>(size)), first_(static_cast<std::size_t>(size) + 1) {
  std::iota(node_of_.begin(), node_of_.end(), 0);
  std::iota(first_.begin(), first_.end(), 0);
}

Topology::Topology(const std::vector<int>& node_of) : Topology(static_cast<int>(node_of.size())) {
  std::vector<int> firsts;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    if (rank == 0 || node_of[rank] != node_of[rank - 1]) firsts.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      // The ranks of this node do not follow each other: each counts as a node of its own.
      if (node_of[static_cast<std::size_t>(firsts[i])] == node_of[static_cast<std::size_t>(firsts[j])]) return;
    }
  }
  if (firsts.size() < 2 || firsts.size() == node_of.size()) return;
  is_hierarchical_ = true;
  first_ = std::move(firsts);
  first_.push_back(size());
  lanes_ = ranks_on(0);
  for (int node = 0; node < nodes(); ++node) {
    std::fill(node_of_.begin() + first(node), node_of_.begin() + first(node + 1), node);
    lanes_ = std::min(lanes_, ranks_on(node));
    is_even_ = is_even_ && ranks_on(node) == ranks_on(0);
  }
}

}  // namespace lockstep::internal
