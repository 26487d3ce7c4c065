#include "lockstep/group/connect.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/collective/link_engine.h"
#include "lockstep/transport/arena_mesh.h"
#include "lockstep/transport/shared_arena.h"
#include "lockstep/transport/tcp_mesh.h"

namespace lockstep {
namespace {

constexpr const char* kPart = "part ";  // begins the names of groups that are parts of others

bool on_one_node(const Membership& membership) {
  return std::all_of(membership.members.begin(), membership.members.end(),
                     [&](const Member& member) { return member.node_id == membership.members.front().node_id; });
}

ProcessGroup over_arena(std::unique_ptr<Arena> arena, const GroupOptions& options,
                        std::shared_ptr<const GroupOrigin> origin) {
  auto messages = make_arena_mesh(*arena);
  return ProcessGroup(std::make_unique<ArenaEngine>(std::move(arena)), options, std::move(messages), std::move(origin));
}

std::unique_ptr<Arena> shared_arena(const Membership& membership, const std::string& name, Deadline deadline) {
  SharedArenaSpec spec;
  spec.name = name;
  spec.rank = membership.rank;
  spec.options.generation = membership.generation;
  for (const Member& member : membership.members) spec.members.push_back({to_string(member), member.pid});
  return make_shared_arena(spec, *membership.store, deadline);
}

std::unique_ptr<Mesh> tcp_mesh(const Membership& membership, const std::string& name, Deadline deadline) {
  TcpMeshSettings settings;
  settings.rank = membership.rank;
  settings.size = membership.size;
  settings.generation = membership.generation;
  settings.job_id = membership.job_id;
  settings.token = membership.token;
  settings.name = name;
  settings.address = membership.members[static_cast<std::size_t>(membership.rank)].address;
  return connect_tcp_mesh(settings, *membership.store, deadline);
}

ProcessGroup over_tcp(const Membership& membership, const std::string& name, const GroupOptions& options,
                      std::shared_ptr<const GroupOrigin> origin, Deadline deadline) {
  // Messages have connections of their own: they need not wait for a collective to end.
  auto collectives = tcp_mesh(membership, name, deadline);
  auto messages = tcp_mesh(membership, name + "/messages", deadline);
  return ProcessGroup(std::make_unique<LinkEngine>(std::move(collectives), membership.generation), options,
                      std::move(messages), std::move(origin));
}

}  // namespace

Transport transport_from_environment() {
  const char* transport = std::getenv("LOCKSTEP_TRANSPORT");
  const std::string_view name = transport == nullptr ? "automatic" : transport;
  if (name == "automatic") return Transport::automatic;
  if (name == "shared_memory") return Transport::shared_memory;
  if (name == "tcp") return Transport::tcp;
  throw Error(ErrorKind::invalid_argument,
              "LOCKSTEP_TRANSPORT is \"" + std::string(name) + "\"; it can be automatic, shared_memory or tcp");
}

ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& options,
                           Deadline deadline) {
  auto origin = std::make_shared<GroupOrigin>(GroupOrigin{membership, name});
  origin->membership.hosted = nullptr;  // the store's server is the world's to end
  if (membership.size == 1) {
    return over_arena(std::move(make_local_arenas(1).front()), options, std::move(origin));
  }
  const bool one_node = on_one_node(membership);
  if (options.transport == Transport::shared_memory && !one_node) {
    throw Error(ErrorKind::invalid_argument,
                "the ranks of this job share no memory (they are on different hosts, or have different "
                "namespaces): transport shared_memory is not to be had; use automatic or tcp");
  }
  if (!one_node || options.transport == Transport::tcp) return over_tcp(membership, name, options, origin, deadline);
  std::unique_ptr<Arena> arena;
  try {
    arena = shared_arena(membership, name, deadline);
  } catch (const Error& error) {
    // Every rank gets this error if any of them does.
    if (error.kind() != ErrorKind::internal || options.transport == Transport::shared_memory) throw;
    if (membership.rank == 0 && !name.starts_with(kPart)) {
      log_warning(fmt::format("the ranks talk over TCP, since there is no shared memory to be had: {}", error.what()));
    }
    return over_tcp(membership, name, options, std::move(origin), deadline);
  }
  return over_arena(std::move(arena), options, std::move(origin));
}

ProcessGroup connect_part(const GroupOrigin& origin, int rank, const std::vector<int>& ranks, const std::string& name,
                          const GroupOptions& options, Deadline deadline) {
  Membership part = origin.membership;
  part.size = static_cast<int>(ranks.size());
  part.members.clear();
  for (const int each : ranks) {
    if (each == rank) part.rank = static_cast<int>(part.members.size());
    part.members.push_back(origin.membership.members[static_cast<std::size_t>(each)]);
    part.members.back().rank = static_cast<int>(part.members.size()) - 1;
  }
  // Hashed, since parts of parts would have names without end.
  return connect_group(part, fmt::format("{}{:016x}", kPart, hash_of(origin.name + "/" + name)), options, deadline);
}

}  // namespace lockstep
