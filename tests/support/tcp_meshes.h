// The ranks of a TCP mesh in one process, over loopback.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/store/memory_store.h"
#include "lockstep/transport/tcp_mesh.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

inline TcpMeshSettings tcp_mesh_settings(int rank, int size, const Token& token) {
  return {.rank = rank, .size = size, .generation = 5, .job_id = "job", .token = token, .name = "test"};
}

inline std::vector<std::unique_ptr<Mesh>> make_tcp_meshes(int size) {
  MemoryStore store;
  const Token token = Token::generate();
  std::vector<std::unique_ptr<Mesh>> meshes(static_cast<std::size_t>(size));
  run_ranks_or_throw(size, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] =
        connect_tcp_mesh(tcp_mesh_settings(rank, size, token), store, Deadline::after(std::chrono::seconds(20)));
  });
  return meshes;
}

}  // namespace lockstep::testing
