// Which ranks of a group share a node. Pure.
//
// On node k, rank `first(k) + i` is in lane i. There are as many lanes as the smallest node has ranks; ranks beyond
// them take part within their node only.
#pragma once

#include <vector>

namespace lockstep::internal {

class Topology {
 public:
  // Every rank on a separate node.
  explicit Topology(int size);
  // node_of: by rank, any numbers that are equal for ranks of one node.
  explicit Topology(const std::vector<int>& node_of);

  int size() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int node(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  int first(int node) const { return first_[static_cast<std::size_t>(node)]; }
  int ranks_on(int node) const { return first(node + 1) - first(node); }
  int lanes() const { return lanes_; }
  int lane(int rank) const { return rank - first(node(rank)); }
  // Whether all nodes have the same number of ranks.
  bool is_even() const { return is_even_; }

  // Whether data should cross between nodes once for a node and not for every rank: there are several nodes, some have
  // several ranks, and the ranks of a node follow each other.
  bool is_hierarchical() const { return is_hierarchical_; }

 private:
  std::vector<int> node_of_;
  std::vector<int> first_;  // by node, and the size behind them
  int lanes_ = 1;
  bool is_even_ = true;
  bool is_hierarchical_ = false;
};

}  // namespace lockstep::internal
