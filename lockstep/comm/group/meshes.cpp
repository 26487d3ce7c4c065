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

bool can_share(const SharedLinks* links, Transport made_for, const Membership& membership,
               const GroupOptions& options) {
  if (links == nullptr || links->connections() != options.connections || links->checksums() != options.checksums) {
    return false;
  }
  return made_for == Transport::tcp || options.transport == made_for || are_apart(membership);
}

void GroupConnections::use(int size, Transport transport_of_group) {
  if (!ranks.empty()) return;
  transport = transport_of_group;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
}

std::shared_ptr<Store> watched_store(const Membership& membership) {
  if (membership.watch == nullptr || membership.watch->is_over()) return membership.store;
  return std::make_shared<WatchedStore>(membership.store, membership.watch);
}

namespace {

// The arena of the members with this rank's node id.
std::unique_ptr<Arena> node_arena(const Membership& membership, const std::string& name, Deadline deadline) {
  const std::string& node = membership.members[static_cast<std::size_t>(membership.rank)].node_id;
  SharedArenaSpec spec;
  spec.options.generation = membership.generation;
  int first = -1;
  for (const Member& member : membership.members) {
    if (member.node_id != node) continue;
    if (first < 0) first = member.rank;
    if (member.rank == membership.rank) spec.rank = static_cast<int>(spec.members.size());
    spec.members.push_back({to_string(member), member.pid, member.process_start});
  }
  spec.name = first == 0 ? name : fmt::format("{}, node of rank {}", name, first);
  return make_shared_arena(spec, *watched_store(membership), deadline);
}

}  // namespace

std::unique_ptr<Arena> arena_if_any(const Membership& membership, const std::string& name, const GroupOptions& options,
                                    Deadline deadline) {
  try {
    return node_arena(membership, name, deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal || options.transport == Transport::shared_memory) throw;
    if (membership.local_rank == 0 && !name.starts_with(kPartPrefix)) {
      log_warning(fmt::format("the ranks communicate over TCP, since shared memory cannot be used: {}", error.what()));
    }
    return nullptr;
  }
}

namespace {

// The ranks that share memory with this one, and rings to them; none if it is alone on its node.
NodeMemory node_memory(const Membership& membership, const std::string& name, const GroupOptions& options,
                       Deadline deadline) {
  NodeMemory memory;
  const std::string& node = membership.members[static_cast<std::size_t>(membership.rank)].node_id;
  for (const Member& member : membership.members) {
    if (member.node_id == node) memory.ranks.push_back(member.rank);
  }
  if (memory.ranks.size() == 1) return {};
  const std::unique_ptr<Arena> arena = arena_if_any(membership, name, options, deadline);
  if (arena == nullptr) return {};
  memory.rings = arena->rings();
  return memory;
}

// That there is a way for data to each rank of a group over connections that were made for another one.
void require_ways(const SharedLinks& links, const TcpGroup& group) {
  for (std::size_t rank = 0; rank < group.ranks.size(); ++rank) {
    const bool is_near = std::ranges::find(group.node.ranks, static_cast<int>(rank)) != group.node.ranks.end();
    if (is_near || std::cmp_equal(rank, group.rank) || links.has_data_with(group.ranks[rank])) continue;
    throw Error(
        ErrorKind::internal,
        fmt::format("cannot connect this group to {}: no shared memory is left, and the group that it was split from "
                    "has no data connections to that rank",
                    group.names[rank]),
        {.rank = group.rank, .peer = static_cast<int>(rank)});
  }
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

}  // namespace

std::unique_ptr<Mesh> mesh_between_hosts(const Membership& membership, const std::string& name,
                                         const GroupOptions& options, std::shared_ptr<SharedLinks>& links,
                                         const std::vector<int>& ranks, Deadline deadline) {
  const bool is_known = links != nullptr;
  TcpGroup group = group_over(membership, name, ranks);
  try {
    if (options.transport == Transport::automatic) group.node = node_memory(membership, name, options, deadline);
    if (is_known) require_ways(*links, group);
  } catch (const Error& error) {
    if (!is_known) throw;
    // Ranks that have no such trouble have the group already.
    const Error cause = membership.watch == nullptr ? error : membership.watch->cause_of(error);
    const std::string self = group.names[static_cast<std::size_t>(membership.rank)];
    open_tcp_mesh(links, group)->abort(error_for_peers(self, membership.rank, cause));
    throw cause;
  }
  if (!is_known) {
    TcpMeshSettings settings = settings_between(membership, name, options, deadline);
    settings.node = group.node;
    links = connect_shared_links(settings, *watched_store(membership), deadline);
  }
  return open_tcp_mesh(links, group);
}

}  // namespace lockstep::internal
