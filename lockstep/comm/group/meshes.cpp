#include "lockstep/comm/group/meshes.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/health/watched_store.h"
#include "lockstep/comm/transport/shared_arena.h"
#include "lockstep/comm/transport/shared_links.h"

namespace lockstep::internal {

bool are_apart(const Membership& membership) {
  std::vector<std::string> nodes;
  for (const Member& member : membership.members) nodes.push_back(member.node_id);
  std::ranges::sort(nodes);
  return std::ranges::adjacent_find(nodes) == nodes.end();
}

bool on_one_node(const Membership& membership) {
  return std::ranges::all_of(
      membership.members, [&](const Member& member) { return member.node_id == membership.members.front().node_id; });
}

bool Connections::serve(const GroupOptions& options) const {
  return links != nullptr && links->connections() == options.connections && links->checksums() == options.checksums;
}

Connections Connections::of(const std::vector<int>& part) const {
  Connections those{links, {}};
  for (const int rank : part) {
    if (links != nullptr) those.ranks.push_back(ranks[static_cast<std::size_t>(rank)]);
  }
  return those;
}

std::shared_ptr<Store> watched_store(const Membership& membership) {
  if (membership.watch == nullptr || membership.watch->is_over()) return membership.store;
  return std::make_shared<WatchedStore>(membership.store, membership.watch);
}

namespace {

// The ranks of the members with this rank's node id, this one among them.
std::vector<int> ranks_of_node(const Membership& membership) {
  const std::string& node = membership.members[static_cast<std::size_t>(membership.rank)].node_id;
  std::vector<int> ranks;
  for (const Member& member : membership.members) {
    if (member.node_id == node) ranks.push_back(member.rank);
  }
  return ranks;
}

// The arena of the members with this rank's node id. segment_bytes: as of ArenaOptions.
std::unique_ptr<Arena> node_arena(const Membership& membership, const std::string& name, std::size_t segment_bytes,
                                  const std::shared_ptr<const ArenaHeaps>& heaps, Deadline deadline) {
  SharedArenaSpec spec;
  spec.options = {.segment_bytes = segment_bytes, .generation = membership.generation};
  spec.heaps = heaps;
  const std::vector<int> ranks = ranks_of_node(membership);
  for (const int rank : ranks) {
    const Member& member = membership.members[static_cast<std::size_t>(rank)];
    if (rank == membership.rank) spec.rank = static_cast<int>(spec.members.size());
    spec.members.push_back({to_string(member), member.pid, member.process_start});
  }
  spec.name = ranks.front() == 0 ? name : fmt::format("{}, node of rank {}", name, ranks.front());
  return make_shared_arena(spec, *watched_store(membership), deadline);
}

// Once for each group and node.
void warn_of_tcp(const Membership& membership, const std::string& name, const Error& why) {
  const std::vector<int> ranks = ranks_of_node(membership);
  if (ranks.front() != membership.rank) return;
  std::string who = std::cmp_equal(ranks.size(), membership.size) ? "the ranks" : "the ranks of this node";
  if (name.starts_with(kPartPrefix)) {
    std::vector<int> of_job;
    for (const int rank : ranks) {
      const Member& member = membership.members[static_cast<std::size_t>(rank)];
      of_job.push_back(member.job_rank < 0 ? member.rank : member.job_rank);
    }
    who =
        fmt::format("the ranks of a group that was split off (in order, ranks {} of the job)", fmt::join(of_job, ", "));
  }
  log_warning(fmt::format("{} communicate over TCP, since shared memory cannot be used: {}", who, why.what()));
}

}  // namespace

std::unique_ptr<Arena> arena_if_any(const Membership& membership, const std::string& name, const GroupOptions& options,
                                    std::size_t segment_bytes, const std::shared_ptr<const ArenaHeaps>& heaps,
                                    Deadline deadline) {
  try {
    return node_arena(membership, name, segment_bytes, heaps, deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal || options.transport == kSharedMemoryTransport) throw;
    warn_of_tcp(membership, name, error);
    return nullptr;
  }
}

namespace {

// The ranks that share memory with this one, and rings to them; none if it is alone on its node.
NodeMemory node_memory(const Membership& membership, const std::string& name, const GroupOptions& options,
                       Deadline deadline) {
  NodeMemory memory;
  memory.ranks = ranks_of_node(membership);
  if (memory.ranks.size() == 1) return {};
  const auto arena = arena_if_any(membership, name, options, kStagingAreaBytes, nullptr, deadline);
  if (arena == nullptr) return {};
  memory.rings = arena->rings();
  return memory;
}

// What to look at if a rank of another host cannot be reached.
std::string about_address(const Member& member) {
  const auto found = std::ranges::find(member.interfaces, member.address, &Interface::address);
  if (found == member.interfaces.end() || found->name.empty()) return "";
  if (found->name == "LOCKSTEP_ADDRESS") return "; that host set LOCKSTEP_ADDRESS to it";
  return fmt::format("; that is its interface {}: if it cannot be reached, set LOCKSTEP_IFNAME on host {} to another",
                     found->name, member.host);
}

TcpMeshSettings settings_between(const Membership& membership, const std::string& name, const GroupOptions& options,
                                 Deadline deadline) {
  TcpMeshSettings settings;
  settings.rank = membership.rank;
  settings.size = membership.size;
  settings.generation = membership.generation;
  settings.job_id = membership.job_id;
  settings.token = membership.token;
  settings.name = name;
  settings.address = membership.members[static_cast<std::size_t>(membership.rank)].address;
  settings.connections = options.connections;
  settings.checksums = options.checksums;
  settings.host_timeout = membership.host_timeout;
  if (membership.watch != nullptr) {
    settings.check_alive = [&membership, deadline] { membership.watch->check(deadline); };
    settings.cause_of = [&membership](const Error& error) { return membership.watch->cause_of(error); };
  }
  const auto member = [&membership](int peer) -> const Member& {
    return membership.members[static_cast<std::size_t>(peer)];
  };
  settings.name_of = [=](int peer) { return to_string(member(peer)); };
  settings.about = [=](int peer) { return about_address(member(peer)); };
  return settings;
}

// Its memory is still to come.
TcpGroup group_over(const Membership& membership, const std::string& name, const std::vector<int>& ranks) {
  TcpGroup group{.name = name, .rank = membership.rank, .ranks = ranks};
  for (const Member& member : membership.members) group.names.push_back(to_string(member));
  return group;
}

std::unique_ptr<Mesh> make_mesh(const Membership& membership, const std::string& name, const GroupOptions& options,
                                Neighbours neighbours, Connections& connections, Deadline deadline) {
  std::shared_ptr<SharedLinks>& links = connections.links;
  if (links == nullptr) {
    connections.ranks.clear();
    for (int rank = 0; rank < membership.size; ++rank) connections.ranks.push_back(rank);
  }
  TcpGroup group = group_over(membership, name, connections.ranks);
  if (options.transport == kAutomaticTransport) {
    try {
      group.node = node_memory(membership, name, options, deadline);
    } catch (const Error& error) {
      if (links == nullptr) throw;
      // Ranks that have no such trouble have the group already.
      const Error cause = membership.watch == nullptr ? error : membership.watch->cause_of(error);
      const std::string self = group.names[static_cast<std::size_t>(membership.rank)];
      open_tcp_mesh(links, group)->abort(error_for_peers(self, membership.rank, cause));
      throw cause;
    }
  }
  if (links == nullptr) {
    TcpMeshSettings settings = settings_between(membership, name, options, deadline);
    settings.node = group.node;
    settings.neighbours = neighbours;
    links = connect_shared_links(settings, *watched_store(membership), deadline);
  }
  return open_tcp_mesh(links, group);
}

}  // namespace

std::unique_ptr<Mesh> mesh_between_hosts(const Membership& membership, const std::string& name,
                                         const GroupOptions& options, Connections& connections, Deadline deadline) {
  return make_mesh(membership, name, options, Neighbours::at_powers_of_two, connections, deadline);
}

std::unique_ptr<Mesh> message_mesh_between_hosts(const Membership& membership, const std::string& name,
                                                 const GroupOptions& options, Connections& connections,
                                                 Deadline deadline) {
  return make_mesh(membership, name + "/messages", options, Neighbours::in_ring, connections, deadline);
}

}  // namespace lockstep::internal
