// The tree plan says which way small operands take in a large group: a few messages a rank, instead of one between any
// two ranks. Pure.
//
// Every rank's operand is its row; ranks that have none give one byte, so that no message is empty. The first rank of
// a node is its leader, and has a bundle of rows. It begins with those of its node. Then, in rounds, it appends what
// comes from the leader 1, 2, 4 ... nodes before, and sends as much of its own, from the front, to the one as many
// nodes behind; counting goes around. In the end it holds the rows of all ranks, its node's first, then those of the
// node before, and so on. It answers the other ranks of its node with the result of a reduction, or else with its
// bundle. So what is reduced is every rank's row, in any order, as if each had come by itself.
//
// Whoever passes a row on has compared signatures with whom it came from: who holds all rows knows that all ranks
// agree.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/topology.h"

namespace lockstep::internal {

struct TreeMessage {
  int peer = -1;
  std::size_t bytes = 0;
};

struct TreePlan {
  int leader = 0;
  // To a leader: they join its bundle in this order. To others: the answer.
  std::vector<TreeMessage> receive = {};
  // Each is the front of the sender's bundle, which for others than leaders is its row, once there is as much of it.
  std::vector<TreeMessage> send = {};
  // From a leader, when its bundle is complete.
  std::vector<TreeMessage> answers = {};
  std::size_t row_bytes = 0;             // of this rank's
  std::size_t bundle_bytes = 0;          // of all rows
  std::vector<std::size_t> row_at = {};  // where each rank's row is in the leader's bundle
};

bool has_tree_plan(OpKind kind);
// Whether leaders answer with the result, not with their bundles.
bool answers_with_result(OpKind kind);
// REQUIRES: has_tree_plan(). Overwrites `plan`, whose memory is used again.
void plan_tree(const Collective& collective, int rank, const Topology& topology, TreePlan& plan);

}  // namespace lockstep::internal
