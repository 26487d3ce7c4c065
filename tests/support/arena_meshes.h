// The ranks of an arena mesh in one process, or in several, over anonymous shared memory.
#pragma once

#include <sys/mman.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/transport/arena_mesh.h"
#include "lockstep/comm/transport/byte_rings.h"

namespace lockstep::testing {

using namespace internal;

// Rings between n ranks; children that are forked share them. Small ones make every stream stall again and again. They
// have the power of two that is next below `ring_bytes`.
inline ByteRings make_rings(int size, std::size_t ring_bytes = arena::kRingBytes) {
  ring_bytes = std::bit_floor(ring_bytes);
  const std::size_t bytes = ByteRings::region_bytes(size, ring_bytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  return {{static_cast<std::byte*>(memory), [bytes](std::byte* region) { ::munmap(region, bytes); }}, size, ring_bytes};
}

inline std::vector<LocalPeer> name_peers(int size) {
  std::vector<LocalPeer> peers(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) peers[static_cast<std::size_t>(rank)].name = "rank " + std::to_string(rank);
  return peers;
}

inline std::unique_ptr<Mesh> make_arena_mesh(const ByteRings& rings, int rank, std::vector<LocalPeer> peers) {
  const Duration yield_for = rings.ranks() > 2 ? Duration::zero() : kMeshYieldFor;  // ranks outnumber cores
  auto list = std::make_shared<const std::vector<LocalPeer>>(std::move(peers));
  return lockstep::internal::make_arena_mesh(rings, rank, std::move(list), yield_for);
}

inline std::vector<std::unique_ptr<Mesh>> make_arena_meshes(int size, std::size_t ring_bytes = arena::kRingBytes) {
  const ByteRings rings = make_rings(size, ring_bytes);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < size; ++rank) meshes.push_back(make_arena_mesh(rings, rank, name_peers(size)));
  return meshes;
}

}  // namespace lockstep::testing
