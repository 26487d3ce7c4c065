// An arena mesh joins ranks of one machine over rings of bytes in memory that all of them map; no bytes pass through
// the kernel. Arena -> make_arena_mesh -> Mesh.
//
// A peer counts as lost when its process has ended without a goodbye; a rank that sleeps looks for that every 20 ms.
// wait() spins and yields for a moment, then sleeps until a peer has moved something.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/transport/arena.h"
#include "lockstep/transport/mesh.h"

namespace lockstep {

// `region` holds ByteRings: shared, zeroed when nobody has used it, aligned to pages and lives as long as `keep_alive`.
// Each rank of peers.size() makes one mesh of it, once.
std::unique_ptr<Mesh> make_arena_mesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank,
                                      std::vector<LocalPeer> peers);

// Over the rings of an arena, which may end before the mesh does. To be called at most once for each Arena.
std::unique_ptr<Mesh> make_arena_mesh(const Arena& arena);

}  // namespace lockstep
