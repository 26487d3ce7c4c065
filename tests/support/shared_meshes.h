// Several groups over the same TCP connections, their ranks in one process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/tcp_meshes.h"

namespace lockstep::testing {

using namespace internal;

using SharedRanks = std::vector<std::shared_ptr<SharedLinks>>;

inline SharedRanks connect_ranks_of_test(int size, int connections = 1, Checksums checksums = Checksums::on,
                                         int complete_up_to = TcpMeshSettings().complete_up_to,
                                         Neighbours neighbours = Neighbours::at_powers_of_two) {
  MemoryStore store;
  const Token token = Token::generate();
  SharedRanks links(static_cast<std::size_t>(size));
  run_ranks_or_throw(size, [&](int rank) {
    TcpMeshSettings settings = tcp_mesh_settings(rank, size, token);
    settings.connections = connections;
    settings.checksums = checksums;
    settings.complete_up_to = complete_up_to;
    settings.neighbours = neighbours;
    links[static_cast<std::size_t>(rank)] =
        connect_shared_links(settings, store, Deadline::after(std::chrono::seconds(20)));
  });
  return links;
}

// As the `rank`th of the ranks does.
inline std::unique_ptr<Mesh> open_group(const SharedRanks& links, const std::string& name,
                                        const std::vector<int>& ranks, int rank) {
  TcpGroup group{.name = name, .rank = rank, .ranks = ranks};
  for (std::size_t each = 0; each < ranks.size(); ++each) group.names.push_back("rank " + std::to_string(each));
  return open_tcp_mesh(links[static_cast<std::size_t>(ranks[static_cast<std::size_t>(rank)])], group);
}

// By the group's ranks.
inline std::vector<std::unique_ptr<Mesh>> open_group(const SharedRanks& links, const std::string& name,
                                                     const std::vector<int>& ranks) {
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    meshes.push_back(open_group(links, name, ranks, rank));
  }
  return meshes;
}

// A part of a larger group: its ranks are others among the connections, in another order.
inline std::vector<std::unique_ptr<Mesh>> make_part_meshes(int size, int connections = 1) {
  const SharedRanks links = connect_ranks_of_test(size + 1, connections);
  std::vector<int> ranks;
  for (int rank = size; rank > 0; --rank) ranks.push_back(rank);
  return open_group(links, "part", ranks);
}

}  // namespace lockstep::testing
