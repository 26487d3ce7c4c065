// Transports connect the ranks of a group whose backend is the native one. connect -> transports -> meshes. One table
// has all of them; errors, documentation and the choice of a transport are derived from it. docs/HACKING.md shows how
// to add one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/group/meshes.h"
#include "lockstep/comm/group/options.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// The ranks to connect, of which this process is one.
struct RanksToConnect {
  const Membership& membership;
  const std::string& name;        // of the group; differs between the groups of a job
  const GroupConnections& known;  // of these ranks, which the group may share
  GroupConnections& own;          // of the group, for its parts
  Deadline deadline;
  GroupOptions options;

  // Whether the program asked for one transport; else the next can replace it.
  bool is_required() const { return options.transport != kAutomaticTransport; }
};

struct Connected {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Mesh> messages = {};  // null: shared memory within nodes, TCP between them
  std::string about = {};               // for the log
};

struct TransportEntry {
  std::string name;         // as users write it
  std::string description;  // "memory that all ranks of one node map"
  // Why these ranks cannot use it; empty: they can. From what all ranks know, so that all get the same.
  std::function<std::string(const Membership&)> obstacle = {};
  // Why this process cannot use it, and what to do; empty: it can. Ranks exchange that, and use it all or none.
  std::function<std::string()> obstacle_here = {};
  // Blocks until all ranks are connected. Without an engine, after a warning, if they cannot be: on all ranks or none,
  // and only if it is not required.
  std::function<Connected(const RanksToConnect&)> connect;
};

// The table, in order of preference.
std::vector<TransportEntry> transports();
// Adds an entry before TCP, for this process; all ranks have to. Error{invalid_argument} if the name is empty or taken.
// Thread-safe.
void register_transport(TransportEntry entry);

// One of their names or "automatic": the name, or for an empty one the value of LOCKSTEP_TRANSPORT, or "automatic".
// Error{invalid_argument} lists the names.
std::string choose_transport(std::string_view name);
// Those that may connect ranks: all in order for "automatic", or the one with the name.
std::vector<TransportEntry> candidates(std::string_view transport);
// Blocks until all ranks are connected by the first candidate that all of them can use, which becomes the transport of
// their options if an earlier one has failed. Error{invalid_argument} if they cannot use the one that is required.
Connected connect_by_transport(RanksToConnect& ranks);

// Lockstep's own.
TransportEntry shared_memory_transport();
TransportEntry tcp_transport();

}  // namespace lockstep::internal
