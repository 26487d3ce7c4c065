#include "lockstep/comm/collective/node_plan.h"

namespace lockstep::internal {
namespace {

using Ready = SendRange::Ready;

// One rank's view of a collective, and of its link to a peer.
struct NodeView {
  const Collective& collective;
  const Topology& topology;
  int rank;

  int node() const { return topology.node(rank); }
  int lane() const { return topology.lane(rank); }
  bool has_lane(int of) const { return topology.lane(of) < topology.lanes(); }
  bool is_local(int peer) const { return topology.node(peer) == node(); }
  // The rank in this one's lane on another node.
  int there(int node) const { return topology.first(node) + lane(); }

  // What a rank's lane owns.
  ByteRange slice(int of) const {
    if (!has_lane(of)) return {};
    return slice_bytes(collective, topology.lanes(), topology.lane(of));
  }
};

// The rank of the node before this one from which partial results come, and the one of the next that they go to.
int carried_from(const NodeView& view) { return view.node() > 0 ? view.there(view.node() - 1) : -1; }
int carried_to(const NodeView& view) {
  return view.node() + 1 < view.topology.nodes() ? view.there(view.node() + 1) : -1;
}

// From the node before this one, with the rows of this one's ranks, to the next.
void place_in_chain(const NodeView& view, ReductionPlan& plan) {
  plan.first_row = view.topology.first(view.node());
  plan.end_row = view.topology.first(view.node() + 1);
  plan.carried_from = carried_from(view);
  plan.carried_to = carried_to(view);
}

// Reduces towards the last node, whose lanes keep the result.
void plan_chain(const NodeView& view, ReductionPlan& plan) {
  const ByteRange own = view.slice(view.rank);
  if (own.bytes() == 0) return;
  plan.own.push_back(own);
  place_in_chain(view, plan);
  if (plan.carried_to >= 0) return;
  plan.kept = {0, own.bytes()};
  plan.kept_at = own.begin;
}

void plan_node_all_reduce(const NodeView& view, int peer, LinkPlan& plan) {
  const ByteRange own = view.slice(view.rank);
  const int to = carried_to(view);
  const auto send_result = [&] {
    to >= 0 ? add(plan.send, Ready::as_received, own, to) : add(plan.send, Ready::as_kept, own);
  };
  if (view.is_local(peer)) {
    add(plan.send, Ready::at_once, view.slice(peer));
    send_result();
    add(plan.receive, view.slice(peer));
  } else if (peer == carried_from(view)) {
    send_result();
  } else if (peer == to) {
    add(plan.send, Ready::as_reduced, {0, own.bytes()});
    add(plan.receive, own);
  }
}

void plan_node_reduce(const NodeView& view, int peer, LinkPlan& plan) {
  const int root = view.collective.root;
  const int last = view.topology.nodes() - 1;
  if (view.is_local(peer)) add(plan.send, Ready::at_once, view.slice(peer));
  if (peer == carried_to(view)) add(plan.send, Ready::as_reduced, {0, view.slice(view.rank).bytes()});
  if (peer == root && view.node() == last) add(plan.send, Ready::as_kept, view.slice(view.rank));
  if (view.rank == root && view.topology.node(peer) == last) add(plan.receive, view.slice(peer));
}

// The rank that a rank of a lane gets its slice from; the root itself on the root.
int broadcast_source(const NodeView& view, int rank) {
  const int root = view.collective.root;
  const int node = view.topology.node(rank), home = view.topology.node(root);
  if (node == home) return root;
  return view.topology.first(node < home ? node + 1 : node - 1) + view.topology.lane(rank);
}

void plan_node_broadcast(const NodeView& view, int peer, LinkPlan& plan) {
  const int root = view.collective.root;
  const auto sends = [&](int from, int to) {  // the slice of from's lane
    return to != root && view.has_lane(from) &&
           (view.topology.node(from) == view.topology.node(to) ||
            (view.has_lane(to) && broadcast_source(view, to) == from));
  };
  if (view.rank == root) {
    if (view.is_local(peer)) add(plan.send, Ready::at_once, view.slice(peer));
    if (sends(root, peer)) add(plan.send, Ready::at_once, view.slice(root));
    return;
  }
  if (peer == root) {
    if (view.is_local(root)) add(plan.receive, view.slice(view.rank));
    if (sends(root, view.rank)) add(plan.receive, view.slice(root));
    return;
  }
  if (sends(view.rank, peer)) {
    add(plan.send, Ready::as_received, view.slice(view.rank), broadcast_source(view, view.rank));
  }
  if (sends(peer, view.rank)) add(plan.receive, view.slice(peer));
}

void plan_node_all_gather(const NodeView& view, int peer, LinkPlan& plan) {
  const Topology& topology = view.topology;
  const bool same_lane = topology.lane(peer) == view.lane();
  if (!view.is_local(peer) && !same_lane) return;
  add(plan.send, Ready::at_once, {0, data_bytes(view.collective)});
  add(plan.receive, part_bytes(view.collective, peer));
  if (!view.is_local(peer)) return;
  for (int node = 0; node < topology.nodes(); ++node) {
    if (node == view.node()) continue;
    add(plan.send, Ready::as_received, part_bytes(view.collective, view.there(node)), view.there(node));
    add(plan.receive, part_bytes(view.collective, topology.first(node) + topology.lane(peer)));
  }
}

// Which lane reduces a rank's block.
int lane_for(const NodeView& view, int rank) { return view.topology.lane(rank) % view.topology.lanes(); }

// Visits the blocks that a lane reduces, of its ranks in their order: the rank, and where its block begins among them.
template <class Visit>
void for_each_block(const NodeView& view, int lane, Visit visit) {
  std::size_t at = 0;
  for (int rank = 0; rank < view.topology.size(); ++rank) {
    if (lane_for(view, rank) != lane) continue;
    visit(rank, at);
    at += data_bytes(view.collective);
  }
}

void plan_scattering_chain(const NodeView& view, ReductionPlan& plan) {
  if (!view.has_lane(view.rank)) return;
  place_in_chain(view, plan);
  for_each_block(view, view.lane(), [&](int rank, std::size_t at) {
    add(plan.own, part_bytes(view.collective, rank));
    if (plan.carried_to < 0 && rank == view.rank) plan.kept = {at, at + data_bytes(view.collective)};
  });
}

void plan_node_reduce_scatter(const NodeView& view, int peer, LinkPlan& plan) {
  const Topology& topology = view.topology;
  const std::size_t block = data_bytes(view.collective);
  const int last = topology.nodes() - 1;
  if (view.is_local(peer) && view.has_lane(peer)) {
    for_each_block(view, topology.lane(peer),
                   [&](int rank, std::size_t) { add(plan.send, Ready::at_once, part_bytes(view.collective, rank)); });
  }
  const bool is_handed_on = peer == carried_to(view);
  if (view.has_lane(view.rank) && (is_handed_on || view.node() == last)) {
    std::size_t all = 0;
    for_each_block(view, view.lane(), [&](int rank, std::size_t at) {
      all = at + block;
      if (!is_handed_on && rank == peer) add(plan.send, Ready::as_reduced, {at, all});
    });
    if (is_handed_on) add(plan.send, Ready::as_reduced, {0, all});
  }
  if (topology.node(peer) == last && topology.lane(peer) == lane_for(view, view.rank)) add(plan.receive, {0, block});
}

}  // namespace

bool has_node_plan(OpKind kind, const Topology& topology) {
  if (kind == OpKind::all_gather) return topology.is_even();
  return traits_of(kind).is_in_place() || kind == OpKind::reduce_scatter;
}

void plan_node_reduction(const Collective& collective, int rank, const Topology& topology, ReductionPlan& plan) {
  const NodeView view{collective, topology, rank};
  if (!traits_of(collective.kind).reduces) return;
  collective.kind == OpKind::reduce_scatter ? plan_scattering_chain(view, plan) : plan_chain(view, plan);
}

void plan_node_link(const Collective& collective, int rank, const Topology& topology, int peer, LinkPlan& plan) {
  const NodeView view{collective, topology, rank};
  switch (collective.kind) {
    case OpKind::all_reduce: return plan_node_all_reduce(view, peer, plan);
    case OpKind::reduce: return plan_node_reduce(view, peer, plan);
    case OpKind::broadcast: return plan_node_broadcast(view, peer, plan);
    case OpKind::all_gather: return plan_node_all_gather(view, peer, plan);
    case OpKind::reduce_scatter: return plan_node_reduce_scatter(view, peer, plan);
    default: return;
  }
}

}  // namespace lockstep::internal
