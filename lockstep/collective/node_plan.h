// The chunk plan of large collectives in two levels, within nodes and between them; see chunk_plan.h. Pure.
#pragma once

#include "lockstep/collective/link_plan.h"

namespace lockstep {

// Whether there is one for a kind of collective. REQUIRES of all: topology.is_hierarchical().
bool has_node_plan(OpKind kind, const Topology& topology);
// REQUIRES of both: `plan` is empty.
void plan_node_chunks(const Collective& collective, int rank, const Topology& topology, ChunkPlan& plan);
void plan_node_link(const Collective& collective, int rank, const Topology& topology, int peer, LinkPlan& plan);

}  // namespace lockstep
