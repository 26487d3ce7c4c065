// A TCP mesh joins ranks on any hosts: every two ranks share authenticated connections, one for control, and one or
// more for data; in a large mesh, once they need them. Store (addresses) -> connect_shared_links -> open_tcp_mesh ->
// Mesh. Any number of groups share the
// connections, which live as long as one of them: each has its own streams, credit and end, and what ends the group
// does not touch the others, unless it is the death of a peer or a damaged connection.
//
// Ranks of one node can have their data go through memory instead. They keep the connection for control, over which
// they also wake each other, so that a rank sleeps in one place, whoever it waits for.
//
// A stream over several connections is dealt out to them in turn, kStripeBytes at a time. That helps where one
// connection gets no more than a part of what the link carries.
//
// Data over connections carry checksums, unless they are turned off. What is damaged is not delivered: it ends the mesh
// for all ranks. Memory needs none.
//
// A peer counts as lost when its process ends (at once) or its host, if that is another one, does not answer for
// host_timeout. Data connections have no such limit, since a healthy rank may be too busy to read for a long time; its
// kernel answers on the control connection all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/transport/byte_rings.h"
#include "lockstep/comm/transport/checked_stream.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

inline constexpr int kMaxConnections = 64;

// Memory that some ranks of a mesh share, this one among them.
struct NodeMemory {
  std::vector<int> ranks = {};          // in ascending order
  std::optional<ByteRings> rings = {};  // of as many ranks
};

// Which ranks are neighbours, by their distance in a ring of all ranks. With either, ranks that are left after some
// have died are still connected with each other, or have a neighbour among the dead.
enum class Neighbours : std::uint8_t {
  at_powers_of_two,  // 2 log2(n) at most: an error reaches all within log2(n) steps
  in_ring,           // two
};

struct TcpMeshSettings {
  int rank = 0;
  int size = 1;
  std::uint64_t generation = 0;
  std::string job_id = {};
  Token token = {};
  // Tells apart the meshes of a job: each is made once, under a unique name of at most 64 bytes.
  std::string name = {};
  // The numeric address at which the peers reach this rank; the only one on which it listens.
  std::string address = "127.0.0.1";
  // For data, between any two ranks that share no memory; the same on all ranks.
  int connections = 1;
  // Up to this many ranks are all connected at the start. With more, each rank is connected with its neighbours, which
  // notice its death, and others are connected when a group first needs them; both the same on all ranks.
  int complete_up_to = 16;
  Neighbours neighbours = Neighbours::at_powers_of_two;
  // Of data; the same on all ranks.
  Checksums checksums = Checksums::on;
  Duration host_timeout = kHostTimeout;  // the same on all ranks
  NodeMemory node = {};
  // Called now and then while ranks connect; throws if one of them is known to have died.
  std::function<void()> check_alive = [] {};
  // The root cause of an error, to be thrown in its place: others may know better why a peer is gone. Called before
  // anything is closed that a peer could notice.
  std::function<Error(const Error&)> cause_of = [](const Error& error) { return error; };
  // What errors call a rank that is not connected yet: "rank 2 (host n1, pid 811)".
  std::function<std::string(int rank)> name_of = [](int rank) { return "rank " + std::to_string(rank); };
  // What an error adds about the address of a rank that cannot be reached.
  std::function<std::string(int rank)> about = [](int) { return std::string(); };
};

class SharedLinks;

// Called by all ranks; blocks until all have the connections that are made at the start, so that a rank that learns
// later of a death can tell the rest. Errors: timeout names the missing ranks; peer_lost; unauthorized and
// invalid_argument as the handshake's. Strangers and second claimants of a rank are refused and reported in the log.
std::shared_ptr<SharedLinks> connect_shared_links(const TcpMeshSettings& settings, Store& store, Deadline deadline);

// A group over connections that exist, of all their ranks or some.
struct TcpGroup {
  // Unique among all groups that ever use the same connections.
  std::string name = {};
  int rank = 0;                         // of this process in the group
  std::vector<int> ranks = {};          // of the group's ranks among those that are connected
  std::vector<std::string> names = {};  // of the same: "rank 2 (host n1, pid 811)"
  NodeMemory node = {};                 // by the group's ranks
};
// Called by all ranks of the group, and waits for none: data that a faster peer sends is kept.
// Error{invalid_argument} if the connections have a group of that name, or one that a peer has not closed.
std::unique_ptr<Mesh> open_tcp_mesh(std::shared_ptr<SharedLinks> links, const TcpGroup& group);

// Both: connections, and the group of all their ranks.
std::unique_ptr<Mesh> connect_tcp_mesh(const TcpMeshSettings& settings, Store& store, Deadline deadline);

}  // namespace lockstep::internal
