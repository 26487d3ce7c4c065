#include "lockstep/comm/group/connect.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/suspended_time.h"
#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/group/vector_kernels.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/transport/arena_mesh.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

bool on_one_node(const Membership& membership) {
  return std::all_of(membership.members.begin(), membership.members.end(),
                     [&](const Member& member) { return member.node_id == membership.members.front().node_id; });
}

namespace {

constexpr const char* kChoiceKey = "choice";  // of backend and transport, in the store while ranks connect

ProcessGroup over_arena(std::unique_ptr<Arena> arena, const GroupOptions& options,
                        std::shared_ptr<const GroupOrigin> origin) {
  auto messages = make_arena_mesh(*arena);
  return ProcessGroup(std::make_unique<ArenaEngine>(std::move(arena)), options, std::move(messages), std::move(origin));
}

Topology topology_of(const Membership& membership) {
  std::vector<int> node_of;
  for (const Member& member : membership.members) {
    const auto same = std::ranges::find(membership.members, member.node_id, &Member::node_id);
    node_of.push_back(static_cast<int>(same - membership.members.begin()));
  }
  return Topology(node_of);
}

ProcessGroup between_hosts(const Membership& membership, const std::string& name, const GroupOptions& options,
                           const std::shared_ptr<GroupOrigin>& origin, const GroupConnections& known,
                           Deadline deadline) {
  GroupConnections& own = origin->connections;
  if (can_share(known.collectives.get(), known.transport, membership, options)) own = known;
  own.use(membership.size, options.transport);
  // Messages have connections of their own: they need not wait for a collective to end.
  auto collectives = mesh_between_hosts(membership, name, options, own.collectives, own.ranks, deadline);
  std::unique_ptr<Mesh> messages;
  try {
    messages = mesh_between_hosts(membership, name + "/messages", options, own.messages, own.ranks, deadline);
  } catch (const Error& error) {
    // Ranks that have both may run a collective already, and would see no more than that this one leaves.
    const Error cause = membership.watch == nullptr ? error : membership.watch->cause_of(error);
    collectives->abort(error_for_peers(collectives->peer_name(membership.rank), membership.rank, cause));
    throw cause;
  }
  Topology topology = options.transport == Transport::automatic ? topology_of(membership) : Topology(membership.size);
  return ProcessGroup(std::make_unique<LinkEngine>(std::move(collectives), membership.generation, std::move(topology)),
                      options, std::move(messages), origin);
}

ProcessGroup over_backend(const Membership& membership, const std::string& name, const GroupOptions& options,
                          const std::shared_ptr<GroupOrigin>& origin, const GroupConnections& known,
                          Deadline deadline) {
  CarrierSite site;
  site.rank = membership.rank;
  site.size = membership.size;
  site.generation = membership.generation;
  site.group = name;
  site.address = membership.members[static_cast<std::size_t>(membership.rank)].address;
  for (const Member& member : membership.members) site.members.push_back(to_string(member));
  site.store = watched_store(membership);
  auto engine = make_backend_engine(options.backend, site, deadline);
  std::unique_ptr<Mesh> messages;
  try {
    GroupConnections& own = origin->connections;
    if (can_share(known.messages.get(), known.transport, membership, options)) own = known;
    own.collectives = nullptr;
    own.use(membership.size, options.transport);
    messages = mesh_between_hosts(membership, name + "/messages", options, own.messages, own.ranks, deadline);
  } catch (const Error& error) {
    engine->abort(error.what());  // for ranks that run a collective already
    throw;
  }
  return ProcessGroup(std::move(engine), options, std::move(messages), origin);
}

// "2 ranks on node 0 (host a): 0, 1; ..."
std::string layout_of(const Membership& membership) {
  std::vector<std::string> nodes, hosts;
  std::vector<std::vector<int>> ranks;
  for (const Member& member : membership.members) {
    const auto at = static_cast<std::size_t>(std::ranges::find(nodes, member.node_id) - nodes.begin());
    if (at == nodes.size()) {
      nodes.push_back(member.node_id);
      hosts.push_back(member.host);
      ranks.emplace_back();
    }
    ranks[at].push_back(member.rank);
  }
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    text += fmt::format("{}{}: rank{} {}", i == 0 ? "" : "; ", hosts[i], ranks[i].size() == 1 ? "" : "s",
                        fmt::join(ranks[i], ", "));
  }
  return text;
}

// What was chosen, and why.
ProcessGroup told(ProcessGroup group, const Membership& membership, const std::string& name,
                  const GroupOptions& options, std::string_view why) {
  log_debug(fmt::format("group {}: rank {} of {}, {}, backend {}, data over {}: {}. Timeout {:.0f} s, address {}", name,
                        membership.rank, membership.size, layout_of(membership), options.backend, group.transport(),
                        why, seconds(options.timeout),
                        membership.members[static_cast<std::size_t>(membership.rank)].address));
  return group;
}

}  // namespace

GroupOptions with_environment(GroupOptions options) {
  const EnvironmentReader reader;
  const auto transport = reader.choice("LOCKSTEP_TRANSPORT");
  if (transport && options.transport == Transport::automatic) {
    if (transport == "shared_memory") options.transport = Transport::shared_memory;
    if (transport == "tcp") options.transport = Transport::tcp;
  }
  const GroupOptions defaults;
  const auto connections = reader.number("LOCKSTEP_CONNECTIONS");
  if (connections && options.connections == defaults.connections) options.connections = *connections;
  const auto checksums = reader.choice("LOCKSTEP_CHECKSUMS");
  if (checksums == "off" && options.checksums == defaults.checksums) options.checksums = Checksums::off;
  if (options.connections < 1 || options.connections > kMaxConnections) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} connections to each other rank: 1 to {} are possible (LOCKSTEP_CONNECTIONS, "
                            "GroupOptions::connections)",
                            options.connections, kMaxConnections));
  }
  return options;
}

std::string describe_choices(const GroupOptions& options) {
  const char* const transports[] = {"automatic", "shared_memory", "tcp"};
  return fmt::format("backend {}, transport {}", options.backend, transports[static_cast<int>(options.transport)]);
}

namespace {

// Ranks with different ones would wait for each other for ever.
void compare_choices(const Membership& membership, const GroupOptions& options, Deadline deadline) {
  const std::string mine = describe_choices(options);
  const std::string me = to_string(membership.members[static_cast<std::size_t>(membership.rank)]);
  const std::string first = membership.store->compare_set(kChoiceKey, "", mine + "\n" + me, deadline);
  const std::size_t end = first.find('\n');
  if (first.substr(0, end) == mine) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the ranks disagree about backend or transport: {} has {}, {} has {}; give all the same "
                          "LOCKSTEP_BACKEND and LOCKSTEP_TRANSPORT, or GroupOptions",
                          first.substr(end + 1), first.substr(0, end), me, mine),
              {.rank = membership.rank});
}

void forget_choice(const Membership& membership, Deadline deadline) {
  try {
    membership.store->remove(kChoiceKey, deadline);
  } catch (const Error&) {  // all are connected, and need the store no more
  }
}

}  // namespace

ProcessGroup connect_ranks(const Membership& membership, const std::string& name, GroupOptions options,
                           const GroupConnections& known, Deadline deadline) {
  auto origin = std::make_shared<GroupOrigin>(GroupOrigin{membership, name, membership.hosted});
  origin->membership.hosted = nullptr;  // the store's server is the world's to end
  if (options.backend != kNativeBackend) {
    return told(over_backend(membership, name, options, origin, known, deadline), membership, name, options,
                "chosen by the backend");
  }
  if (membership.size == 1) {
    return told(over_arena(std::move(make_local_arenas(1).front()), options, std::move(origin)), membership, name,
                options, "there is one rank");
  }
  const bool one_node = on_one_node(membership);
  if (options.transport == Transport::shared_memory && !one_node) {
    throw Error(ErrorKind::invalid_argument,
                "the ranks of this job share no memory (they are on different hosts, or have different "
                "namespaces): transport shared_memory cannot be used; use automatic or tcp");
  }
  if (!one_node || options.transport == Transport::tcp) {
    return told(between_hosts(membership, name, options, origin, known, deadline), membership, name, options,
                one_node ? "TCP was requested" : "the ranks are on several nodes");
  }
  std::unique_ptr<Arena> arena = arena_if_any(membership, name, options, deadline);
  if (arena == nullptr) {
    options.transport = Transport::tcp;
    return told(between_hosts(membership, name, options, origin, known, deadline), membership, name, options,
                "shared memory cannot be used");
  }
  const std::string why =
      fmt::format("all ranks are on one node; {} MiB of address space a rank", arena->segment_bytes() >> 20);
  return told(over_arena(std::move(arena), options, std::move(origin)), membership, name, options, why);
}

ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& wanted,
                           Deadline deadline) {
  process_recorder({.rank = membership.rank, .world_size = membership.size, .job_id = membership.job_id});
  if (membership.size > 1) detect_suspension();
  choose_vector_kernels();
  GroupOptions options = wanted;
  options.backend = choose_backend(wanted.backend);
  if (membership.watch == nullptr || membership.watch->is_over()) {
    return connect_ranks(membership, name, std::move(options), {}, deadline);
  }
  try {
    if (membership.size > 1) compare_choices(membership, options, deadline);
    ProcessGroup group = connect_ranks(membership, name, std::move(options), {}, deadline);
    if (membership.rank == 0) forget_choice(membership, deadline);
    finish_joining(membership, deadline);
    return group;
  } catch (const Error& error) {
    throw abandon_joining(membership, error);
  }
}

}  // namespace lockstep::internal
