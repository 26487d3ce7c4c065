// How the first connections of a TCP mesh are made: publish the own address, connect to lower ranks, accept higher
// ones, and wait until all ranks have done so. Store -> listen, connect, handshake -> TcpLink. LinkOpener makes those
// that are left.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

// The connections to one peer: empty where they are not made yet.
struct TcpLink {
  UniqueFd control;
  std::vector<UniqueFd> data;
  std::string who;  // "rank 2 (host n1, pid 811)"
};

struct PeerAddress {
  Endpoint endpoint;
  std::string about;  // as of TcpMeshSettings
};

struct TcpLinks {
  std::vector<TcpLink> links;  // by rank; the own entry has only a name
  // For the connections that are left; empty if there are none.
  std::vector<Listener> listeners = {};
  std::vector<PeerAddress> addresses = {};  // by rank
};

// Errors as connect_tcp_mesh().
TcpLinks connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline);

// Whether ranks of a large mesh are connected at its start.
bool are_neighbours(Neighbours neighbours, int rank, int peer, int ranks);

}  // namespace lockstep::internal
