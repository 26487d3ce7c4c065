// The meshes and arenas of a group whose ranks connect, and the connections that a group shares with its parts.
// connect -> meshes -> transport.
#pragma once

#include <memory>
#include <string>
#include <string_view>
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

// Values of GroupOptions::transport that a group's parts and messages depend on.
inline constexpr std::string_view kAutomaticTransport = "automatic";
inline constexpr std::string_view kSharedMemoryTransport = "shared_memory";
inline constexpr std::string_view kTcpTransport = "tcp";

// Connections that a group has made, or shares with the group that it is a part of.
struct Connections {
  std::shared_ptr<SharedLinks> links = {};  // null if there are none
  std::vector<int> ranks = {};              // of the group's ranks among those that are connected

  // Whether a group with these options needs no others.
  bool serve(const GroupOptions& options) const;
  // Of a part: of its ranks, by their numbers in this group.
  Connections of(const std::vector<int>& part) const;
};

// Collectives and messages have connections of their own, since they wait in different threads: over the same ones, one
// thread would receive what the other waits for, and would have to wake it.
struct GroupConnections {
  Connections collectives = {};
  Connections messages = {};
  // In which the tensors of the group's ranks lie, where they, or those of a group that it is a part of, share memory.
  std::shared_ptr<const ArenaHeaps> heaps = {};
};

bool on_one_node(const Membership& membership);
bool are_apart(const Membership& membership);  // each on a node of its own

// The store for ranks that still connect: waits there end when one of them dies.
std::shared_ptr<Store> watched_store(const Membership& membership);
// The arena of the members with this rank's node id; null, with a warning of the lowest of them, if it is unavailable
// and the options allow TCP. All ranks of the node get the same. segment_bytes, heaps: of
// SharedArenaSpec.
std::unique_ptr<Arena> arena_if_any(const Membership& membership, const std::string& name, const GroupOptions& options,
                                    std::size_t segment_bytes, const std::shared_ptr<const ArenaHeaps>& heaps,
                                    Deadline deadline);
// The group's mesh for collectives, over the connections if there are any, else over new ones, which are put there.
std::unique_ptr<Mesh> mesh_between_hosts(const Membership& membership, const std::string& name,
                                         const GroupOptions& options, Connections& connections, Deadline deadline);
// The same for messages.
std::unique_ptr<Mesh> message_mesh_between_hosts(const Membership& membership, const std::string& name,
                                                 const GroupOptions& options, Connections& connections,
                                                 Deadline deadline);

}  // namespace lockstep::internal
