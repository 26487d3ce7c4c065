// A local mesh joins ranks that are threads of one process, over bounded rings of bytes. For tests and simulations.
// Each Mesh belongs to one thread at a time; they share one network, which lives as long as the last of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/transport/mesh.h"

namespace lockstep {

// One Mesh a rank. A stream holds at most `ring_bytes` bytes that were sent and not yet received.
std::vector<std::unique_ptr<Mesh>> make_arena_meshes(int size, std::size_t ring_bytes = std::size_t{64} << 10);

}  // namespace lockstep
