// The meshes and arenas of a group whose ranks connect, and the connections that a group shares with its parts.
// connect -> meshes -> transport.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/group/options.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/transport/arena.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

// Begins the names of groups that are parts of others.
inline constexpr const char* kPartPrefix = "part ";

// Connections that a group has made, or shares with the group that it is a part of. Null where it has none.
struct GroupConnections {
  std::shared_ptr<SharedLinks> collectives = {};
  std::shared_ptr<SharedLinks> messages = {};
  std::vector<int> ranks = {};  // of the group's ranks among those that are connected
  // For which they were made: ranks of a node have none for data unless all data goes over TCP.
  Transport transport = Transport::automatic;

  // Unless they are shared ones: they are about to be made, for a group of that size.
  void use(int size, Transport transport_of_group);
};

// Whether a group with these options needs no connections but those.
bool can_share(const SharedLinks* links, Transport made_for, const Membership& membership, const GroupOptions& options);
bool are_apart(const Membership& membership);  // each on a node of its own

// The store for ranks that still connect: waits there end when one of them dies.
std::shared_ptr<Store> watched_store(const Membership& membership);
// The arena of the members with this rank's node id; null if it is unavailable and the options allow TCP. All ranks of
// the node get the same.
std::unique_ptr<Arena> arena_if_any(const Membership& membership, const std::string& name, const GroupOptions& options,
                                    Deadline deadline);
// The group's mesh, over the links if there are any, else over new ones, which are put there.
std::unique_ptr<Mesh> mesh_between_hosts(const Membership& membership, const std::string& name,
                                         const GroupOptions& options, std::shared_ptr<SharedLinks>& links,
                                         const std::vector<int>& ranks, Deadline deadline);

}  // namespace lockstep::internal
