// The ranks of a TCP mesh in one process, over loopback.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/transport/tcp_mesh.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

using namespace internal;

inline TcpMeshSettings tcp_mesh_settings(int rank, int size, const Token& token) {
  return {.rank = rank, .size = size, .generation = 5, .job_id = "job", .token = token, .name = "test"};
}

// Of TcpMeshSettings::complete_up_to, for a mesh whose ranks are connected once they need it, however few they are.
inline constexpr int kWhenNeeded = 0;

// ranks_per_node: 0 if no two share memory.
inline std::vector<std::unique_ptr<Mesh>> make_tcp_meshes(int size, int connections = 1, int ranks_per_node = 0,
                                                          Checksums checksums = Checksums::on,
                                                          int complete_up_to = TcpMeshSettings().complete_up_to,
                                                          Neighbours neighbours = Neighbours::at_powers_of_two) {
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<NodeMemory> nodes;
  for (int first = 0; ranks_per_node != 0 && first < size; first += ranks_per_node) {
    const int ranks = std::min(ranks_per_node, size - first);
    nodes.push_back({{}, make_rings(ranks)});
    for (int place = 0; place < ranks; ++place) nodes.back().ranks.push_back(first + place);
  }
  std::vector<std::unique_ptr<Mesh>> meshes(static_cast<std::size_t>(size));
  run_ranks_or_throw(size, [&](int rank) {
    TcpMeshSettings settings = tcp_mesh_settings(rank, size, token);
    settings.connections = connections;
    settings.checksums = checksums;
    settings.complete_up_to = complete_up_to;
    settings.neighbours = neighbours;
    if (ranks_per_node != 0) settings.node = nodes[static_cast<std::size_t>(rank / ranks_per_node)];
    meshes[static_cast<std::size_t>(rank)] =
        connect_tcp_mesh(settings, store, Deadline::after(std::chrono::seconds(20)));
  });
  return meshes;
}

}  // namespace lockstep::testing
