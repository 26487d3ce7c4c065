// An arena mesh joins ranks of one machine over rings of bytes in memory that all of them map; no bytes pass through
// the kernel. Arena -> make_arena_mesh -> Mesh.
//
// A peer counts as lost when its process has ended without a goodbye; a rank that sleeps looks for that every 20 ms.
#pragma once

#include <memory>

#include "lockstep/comm/health/local_peers.h"
#include "lockstep/comm/transport/arena.h"
#include "lockstep/comm/transport/byte_rings.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// How long a rank that waits yields before it sleeps. Zero is right for many more ranks than cores.
inline constexpr Duration kMeshYieldFor = std::chrono::microseconds(100);

// Each of the ranks that share the rings makes one mesh of them, once.
std::unique_ptr<Mesh> make_arena_mesh(const ByteRings& rings, int rank, LocalPeerList peers,
                                      Duration yield_for = kMeshYieldFor);

// Over the rings of an arena, which may end before the mesh does. To be called at most once for each Arena. An abort of
// either ends both.
std::unique_ptr<Mesh> make_arena_mesh(const Arena& arena);

}  // namespace lockstep::internal
