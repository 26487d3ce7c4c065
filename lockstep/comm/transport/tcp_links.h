// How the connections of a TCP mesh come about: publish the own address, connect to all lower ranks, accept all higher
// ones, and wait until all ranks have done so. Store -> listen, connect, handshake -> TcpLink.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

// The connections to one peer.
struct TcpLink {
  UniqueFd control;
  std::vector<UniqueFd> data;  // none to a peer whose data goes through memory
  std::string who;             // "rank 2 (host n1, pid 811)"
};

// By rank; the own entry has only a name. Errors as connect_tcp_mesh().
std::vector<TcpLink> connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline);

}  // namespace lockstep::internal
