#include "lockstep/comm/collective/link_plan.h"

#include "lockstep/comm/collective/node_plan.h"
#include "lockstep/comm/collective/piece.h"
#include "lockstep/comm/collective/tree_plan.h"

namespace lockstep::internal {
namespace {

using Ready = SendRange::Ready;

// With fewer chunks a reduce-scatter loses more by the longer way through the nodes than it gains.
constexpr std::size_t kChunksThatOverlap = 4;

bool is_small(const Collective& collective, const LinkTuning& tuning) {
  return data_bytes(collective) <= tuning.small_bytes;
}

bool is_worth_two_levels(const Collective& collective, const Topology& topology, const LinkTuning& tuning) {
  const std::size_t all_bytes = data_bytes(collective) * static_cast<std::size_t>(topology.size());
  return collective.kind != OpKind::reduce_scatter || all_bytes >= kChunksThatOverlap * tuning.chunk_bytes;
}

// One rank's side of a collective on the flat route, and of its link to a peer.
struct View {
  const Collective& collective;
  const int rank;
  const int size;
  const bool small;

  int root() const { return collective.root; }
  ByteRange everything() const { return {0, data_bytes(collective)}; }
  ByteRange slice(int of) const { return slice_bytes(collective, size, of); }
  // A large broadcast is cut among the ranks other than the root, which pass their slices on to each other.
  ByteRange broadcast_slice(int of) const { return slice_bytes(collective, size - 1, of < root() ? of : of - 1); }
};

void plan_all_reduce(const View& view, int peer, LinkPlan& plan) {
  if (view.small) return;
  add(plan.send, Ready::at_once, view.slice(peer));
  add(plan.send, Ready::as_kept, view.slice(view.rank));
  add(plan.receive, view.slice(peer));
}

void plan_reduce(const View& view, int peer, LinkPlan& plan) {
  if (view.small) {
    if (peer == view.root()) add(plan.send, Ready::at_once, view.everything());
    return;
  }
  add(plan.send, Ready::at_once, view.slice(peer));
  if (peer == view.root()) add(plan.send, Ready::as_kept, view.slice(view.rank));
  if (view.rank == view.root()) add(plan.receive, view.slice(peer));
}

void plan_broadcast(const View& view, int peer, LinkPlan& plan) {
  const bool is_direct = view.size == 2 || view.small;
  if (view.rank == view.root()) {
    if (!view.small) add(plan.send, Ready::at_once, is_direct ? view.everything() : view.broadcast_slice(peer));
  } else if (peer == view.root()) {
    add(plan.receive, is_direct ? view.everything() : view.broadcast_slice(view.rank));
  } else if (!is_direct) {
    add(plan.send, Ready::as_received, view.broadcast_slice(view.rank), view.root());
    add(plan.receive, view.broadcast_slice(peer));
  }
}

// Whether every rank, or a broadcast's root, sends the same to all.
bool is_sent_whole(const View& view) {
  const OpKind kind = view.collective.kind;
  if (kind == OpKind::broadcast && view.rank != view.root()) return false;
  return view.small && (kind == OpKind::all_reduce || kind == OpKind::all_gather || kind == OpKind::broadcast);
}

// What is reduced arrives as a row.
void plan_pieces(const View& view, int peer, LinkPlan& plan) {
  const Piece to = piece_of(view.collective, view.size, view.rank, peer);
  const Piece from = piece_of(view.collective, view.size, peer, view.rank);
  if (!is_sent_whole(view)) add(plan.send, Ready::at_once, {to.input_offset, to.input_offset + to.bytes});
  if (traits_of(view.collective.kind).reduces) return;
  add(plan.receive, {from.output_offset, from.output_offset + from.bytes});
}

bool has_trees(const Topology& topology, const LinkTuning& tuning) {
  return topology.size() >= (topology.is_hierarchical() ? tuning.tree_ranks : tuning.tree_lone_ranks);
}

}  // namespace

Route route_of(const Collective& collective, const Topology& topology, const LinkTuning& tuning) {
  if (is_small(collective, tuning)) {
    return has_trees(topology, tuning) && has_tree_plan(collective.kind) ? Route::tree : Route::flat;
  }
  // From node to node rows are reduced in rank order.
  const bool in_nodes = topology.is_hierarchical() && has_node_plan(collective.kind, topology) &&
                        collective.order == Order::ranks && is_worth_two_levels(collective, topology, tuning);
  return in_nodes ? Route::two_levels : Route::flat;
}

void plan_reduction(const Collective& collective, int rank, const Topology& topology, Route route,
                    const LinkTuning& tuning, ReductionPlan& plan) {
  plan.clear();
  if (route == Route::two_levels) return plan_node_reduction(collective, rank, topology, plan);
  const View view{collective, rank, topology.size(), is_small(collective, tuning)};
  plan.whole = is_sent_whole(view);
  const OpTraits& op = traits_of(collective.kind);
  if (!op.reduces) return;
  if (op.is_in_place() && !view.small) {
    plan.own.push_back(view.slice(rank));
    plan.end_row = view.size;
    plan.kept_at = plan.own.front().begin;
  } else if (op.has_result(rank, view.root())) {
    const std::size_t begin = op.is_in_place() ? 0 : piece_of(collective, view.size, rank, rank).input_offset;
    plan.own.push_back({begin, begin + data_bytes(collective)});
    plan.end_row = op.sources(rank, view.root(), view.size).end;
  }
  plan.kept = {0, bytes_of(plan.own)};
}

void plan_link(const Collective& collective, int rank, const Topology& topology, int peer, Route route,
               const LinkTuning& tuning, LinkPlan& plan) {
  plan.clear();
  if (route == Route::two_levels) return plan_node_link(collective, rank, topology, peer, plan);
  const View view{collective, rank, topology.size(), is_small(collective, tuning)};
  switch (collective.kind) {
    case OpKind::all_reduce: return plan_all_reduce(view, peer, plan);
    case OpKind::reduce: return plan_reduce(view, peer, plan);
    case OpKind::broadcast: return plan_broadcast(view, peer, plan);
    case OpKind::barrier: return;
    default: return plan_pieces(view, peer, plan);
  }
}

}  // namespace lockstep::internal
