// The part of the link plan for large collectives between nodes whose ranks share them (topology.h), in two levels:
//
//   all_reduce, reduce   Lane i owns slice i. On each node its rank reduces the node's rows, in rank order and behind
//                        the partial sum of the node before, and hands that on to the next node. The last one has the
//                        result, which comes back the same way, from node to node, each telling its own ranks. So a
//                        node sends and receives each byte at most twice, once each with two nodes, and element i is
//                        still ((x0 + x1) + x2) + ... in rank order.
//   broadcast            The root deals slices to its node's lanes; each goes from node to node, and within each.
//   all_gather           Each rank sends to its lane on the other nodes, and forwards what it receives from there to
//                        the ranks of its node.
//   reduce_scatter       Lane i reduces the blocks of all ranks in lane i, and its share of those beyond the lanes',
//                        from node to node like all_reduce; the last node hands each block to its rank.
//
// Pure.
#pragma once

#include "lockstep/comm/collective/link_plan.h"

namespace lockstep::internal {

bool has_node_plan(OpKind kind, const Topology& topology);
// Both add to an empty plan. REQUIRES: has_node_plan(), and topology.is_hierarchical().
void plan_node_reduction(const Collective& collective, int rank, const Topology& topology, ReductionPlan& plan);
void plan_node_link(const Collective& collective, int rank, const Topology& topology, int peer, LinkPlan& plan);

}  // namespace lockstep::internal
