// How the connections of a TCP mesh come about: publish the own address, connect to all lower ranks, accept all higher
// ones, and wait until all ranks have done so. Store -> listen, connect, handshake -> TcpLink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/tcp_mesh.h"

namespace lockstep {

// The connections to one peer.
struct TcpLink {
  UniqueFd control;
  std::vector<UniqueFd> data;  // none to a peer whose data goes through memory
  std::string who;             // "rank 2 (host n1, pid 811)"
};

// What a handshake claims as its number: which connection of the pair this is (0: for control, else 1 + the index of
// one for data), how many for data its sender makes, and whether those carry checksums. Both ends must want the same.
std::uint64_t connection_claim(std::uint64_t number, std::size_t for_data, Checksums checksums);

// By rank; the own entry has only a name. Errors as connect_tcp_mesh().
std::vector<TcpLink> connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline);

}  // namespace lockstep
