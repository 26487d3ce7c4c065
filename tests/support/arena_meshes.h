// The ranks of an arena mesh in one process, or in several, over anonymous shared memory.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/transport/arena_mesh.h"
#include "lockstep/transport/byte_rings.h"

namespace lockstep::testing {

// Zeroed memory for the rings of n ranks; children that are forked share it.
inline std::shared_ptr<std::byte> make_ring_region(int size) {
  const std::size_t bytes = ByteRings::region_bytes(size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  return {static_cast<std::byte*>(memory), [bytes](std::byte* region) { ::munmap(region, bytes); }};
}

inline std::vector<LocalPeer> name_peers(int size) {
  std::vector<LocalPeer> peers(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) peers[static_cast<std::size_t>(rank)].name = "rank " + std::to_string(rank);
  return peers;
}

inline std::vector<std::unique_ptr<Mesh>> make_arena_meshes(int size) {
  const auto region = make_ring_region(size);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < size; ++rank) {
    meshes.push_back(make_arena_mesh(region, region.get(), rank, name_peers(size)));
  }
  return meshes;
}

}  // namespace lockstep::testing
