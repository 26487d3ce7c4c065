#include "lockstep/collective/link_plan.h"

#include "lockstep/collective/node_plan.h"
#include "lockstep/collective/piece.h"
#include "lockstep/collective/tree_plan.h"

namespace lockstep {
namespace {

// With fewer of them a reduce-scatter loses more by the longer way through the nodes than it gains.
constexpr std::size_t kChunksThatOverlap = 4;

bool is_small(const Collective& collective, const LinkTuning& tuning) {
  return data_bytes(collective) <= tuning.small_bytes;
}

// A large broadcast is cut among the ranks other than the root, which pass their slices on to each other.
ByteRange broadcast_slice(const Collective& collective, int size, int rank) {
  return slice_bytes(collective, size - 1, rank < collective.root ? rank : rank - 1);
}

void plan_broadcast(const Collective& collective, int rank, int size, int peer, bool small, LinkPlan& plan) {
  const int root = collective.root;
  const bool direct = size == 2 || small;
  const ByteRange everything{0, data_bytes(collective)};
  if (rank == root) {
    plan.send_operand.push_back(direct ? everything : broadcast_slice(collective, size, peer));
  } else if (peer == root) {
    plan.receive.push_back(direct ? everything : broadcast_slice(collective, size, rank));
  } else if (!direct) {
    plan.send_results.push_back({broadcast_slice(collective, size, rank), root});
    plan.receive.push_back(broadcast_slice(collective, size, peer));
  }
}

void plan_reduce(const Collective& collective, int rank, int size, int peer, bool small, LinkPlan& plan) {
  const int root = collective.root;
  if (small) {
    if (peer == root) plan.send_operand.push_back({0, data_bytes(collective)});
    return;
  }
  plan.send_operand.push_back(slice_bytes(collective, size, peer));
  if (peer == root) plan.send_results.push_back({slice_bytes(collective, size, rank)});
  if (rank == root) plan.receive.push_back(slice_bytes(collective, size, peer));
}

void plan_all_reduce(const Collective& collective, int rank, int size, int peer, bool small, LinkPlan& plan) {
  plan.send_operand.push_back(small ? ByteRange{0, data_bytes(collective)} : slice_bytes(collective, size, peer));
  if (small) return;
  plan.send_results.push_back({slice_bytes(collective, size, rank)});
  plan.receive.push_back(slice_bytes(collective, size, peer));
}

void plan_pieces(const Collective& collective, int rank, int size, int peer, LinkPlan& plan) {
  const Piece to = piece_of(collective, size, rank, peer);
  const Piece from = piece_of(collective, size, peer, rank);
  plan.send_operand.push_back({to.input_offset, to.input_offset + to.bytes});
  plan.receive.push_back({from.output_offset, from.output_offset + from.bytes});
}

void plan_flat_chunks(const Collective& collective, int rank, int size, bool small, ChunkPlan& plan) {
  const ByteRange everything{0, data_bytes(collective)};
  plan.in_place = traits_of(collective.kind).is_in_place();
  switch (collective.kind) {
    case OpKind::all_reduce:
      plan.whole = small;
      plan.result = small ? everything : slice_bytes(collective, size, rank);
      plan.own.push_back(plan.result);
      plan.end_row = size;
      return;
    case OpKind::reduce_scatter:
      plan.own.push_back(part_bytes(collective, rank));
      plan.end_row = size;
      plan.result = everything;
      return;
    case OpKind::reduce:
      if (small && rank != collective.root) return;
      plan.result = small ? everything : slice_bytes(collective, size, rank);
      plan.own.push_back(plan.result);
      plan.end_row = size;
      return;
    case OpKind::broadcast: plan.whole = rank == collective.root && small; return;
    case OpKind::all_gather: plan.whole = small; return;
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all:
    case OpKind::barrier: return;
  }
}

bool in_two_levels(const Collective& collective, const Topology& topology, const LinkTuning& tuning) {
  if (!topology.is_hierarchical() || is_small(collective, tuning)) return false;
  const std::size_t all_bytes = data_bytes(collective) * static_cast<std::size_t>(topology.size());
  if (collective.kind == OpKind::reduce_scatter && all_bytes < kChunksThatOverlap * tuning.chunk_bytes) return false;
  // From node to node rows are reduced in rank order.
  return has_node_plan(collective.kind, topology) && collective.order == Order::ranks;
}

bool goes_in_tree(const Collective& collective, const Topology& topology, const LinkTuning& tuning) {
  return has_trees(topology, tuning) && is_small(collective, tuning) && has_tree_plan(collective.kind);
}

void plan_tree_chunks(const Collective& collective, int rank, const Topology& topology, ChunkPlan& plan) {
  plan.in_place = !traits_of(collective.kind).moves_pieces();
  plan.whole = plan.in_tree = true;
  if (!answers_with_result(collective.kind)) return;
  const int node = topology.node(rank);
  const bool is_wanted = collective.kind == OpKind::all_reduce || node == topology.node(collective.root);
  if (is_wanted && rank == topology.first(node)) {
    plan.result = {0, data_bytes(collective)};
    plan.own.push_back(plan.result);
    plan.end_row = topology.size();
  }
}

}  // namespace

bool has_trees(const Topology& topology, const LinkTuning& tuning) {
  return topology.size() >= (topology.is_hierarchical() ? tuning.tree_ranks : tuning.tree_lone_ranks);
}

void plan_chunks(const Collective& collective, int rank, const Topology& topology, const LinkTuning& tuning,
                 ChunkPlan& plan) {
  plan.clear();
  if (goes_in_tree(collective, topology, tuning)) return plan_tree_chunks(collective, rank, topology, plan);
  if (in_two_levels(collective, topology, tuning)) return plan_node_chunks(collective, rank, topology, plan);
  plan_flat_chunks(collective, rank, topology.size(), is_small(collective, tuning), plan);
}

void plan_link(const Collective& collective, int rank, const Topology& topology, int peer, const LinkTuning& tuning,
               LinkPlan& plan) {
  plan.send_operand.clear();
  plan.send_results.clear();
  plan.receive.clear();
  if (goes_in_tree(collective, topology, tuning)) return;
  if (in_two_levels(collective, topology, tuning)) return plan_node_link(collective, rank, topology, peer, plan);
  const int size = topology.size();
  const bool small = is_small(collective, tuning);
  switch (collective.kind) {
    case OpKind::all_reduce: return plan_all_reduce(collective, rank, size, peer, small, plan);
    case OpKind::reduce_scatter: plan.send_operand.push_back(part_bytes(collective, peer)); return;
    case OpKind::reduce: return plan_reduce(collective, rank, size, peer, small, plan);
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all: return plan_pieces(collective, rank, size, peer, plan);
    case OpKind::broadcast: return plan_broadcast(collective, rank, size, peer, small, plan);
    case OpKind::barrier: return;
  }
}

}  // namespace lockstep
