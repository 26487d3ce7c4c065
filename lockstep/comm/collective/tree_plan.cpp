#include "lockstep/comm/collective/tree_plan.h"

#include <algorithm>

#include "lockstep/comm/collective/byte_range.h"

namespace lockstep::internal {
namespace {

std::size_t operand_bytes(const Collective& collective, int rank) {
  if (collective.kind == OpKind::broadcast && rank != collective.root) return 0;
  return data_bytes(collective);
}

std::size_t row_bytes(const Collective& collective, int rank) {
  return std::max<std::size_t>(operand_bytes(collective, rank), 1);
}

std::size_t answer_bytes(const Collective& collective, int rank, const TreePlan& plan) {
  if (!answers_with_result(collective.kind)) return plan.bundle_bytes;
  return collective.kind == OpKind::all_reduce || rank == collective.root ? row_bytes(collective, rank) : 1;
}

// The rows as they lie in the bundle of this node's leader.
void place_rows(const Collective& collective, const Topology& topology, int node, TreePlan& plan) {
  plan.row_at.resize(static_cast<std::size_t>(topology.size()));
  plan.bundle_bytes = 0;
  for (int back = 0; back < topology.nodes(); ++back) {
    const int from = (node - back + topology.nodes()) % topology.nodes();
    for (int rank = topology.first(from); rank < topology.first(from + 1); ++rank) {
      plan.row_at[static_cast<std::size_t>(rank)] = plan.bundle_bytes;
      plan.bundle_bytes += row_bytes(collective, rank);
    }
  }
}

}  // namespace

bool has_tree_plan(OpKind kind) {
  return traits_of(kind).is_in_place() || kind == OpKind::all_gather || kind == OpKind::barrier;
}

bool answers_with_result(OpKind kind) { return traits_of(kind).reduces_in_place(); }

void plan_tree(const Collective& collective, int rank, const Topology& topology, TreePlan& plan) {
  const int node = topology.node(rank), nodes = topology.nodes();
  plan.leader = topology.first(node);
  plan.receive.clear();
  plan.send.clear();
  plan.answers.clear();
  plan.row_bytes = row_bytes(collective, rank);
  place_rows(collective, topology, node, plan);
  if (rank != plan.leader) {
    plan.send.push_back({plan.leader, plan.row_bytes});
    plan.receive.push_back({plan.leader, answer_bytes(collective, rank, plan)});
    return;
  }
  for (int member = plan.leader + 1; member < topology.first(node + 1); ++member) {
    plan.receive.push_back({member, row_bytes(collective, member)});
    plan.answers.push_back({member, answer_bytes(collective, member, plan)});
  }
  const auto front = [&](int count) {  // bytes of the first `count` nodes
    const int next = topology.first((node - count + nodes) % nodes);
    return count == nodes ? plan.bundle_bytes : plan.row_at[static_cast<std::size_t>(next)];
  };
  for (int held = 1; held < nodes; held *= 2) {
    const int more = std::min(held, nodes - held);
    plan.send.push_back({topology.first((node + held) % nodes), front(more)});
    plan.receive.push_back({topology.first((node - held + nodes) % nodes), front(held + more) - front(held)});
  }
}

}  // namespace lockstep::internal
