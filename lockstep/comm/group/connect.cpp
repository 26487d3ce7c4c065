#include "lockstep/comm/group/connect.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/suspended_time.h"
#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/group/transports.h"
#include "lockstep/comm/group/vector_kernels.h"
#include "lockstep/comm/health/join_watch.h"

namespace lockstep::internal {

namespace {

constexpr const char* kChoiceKey = "choice";  // of backend and transport, in the store while ranks connect

Connected over_backend(const RanksToConnect& ranks) {
  const Membership& membership = ranks.membership;
  CarrierSite site;
  site.rank = membership.rank;
  site.size = membership.size;
  site.generation = membership.generation;
  site.group = ranks.name;
  site.address = membership.members[static_cast<std::size_t>(membership.rank)].address;
  for (const Member& member : membership.members) site.members.push_back(to_string(member));
  site.store = watched_store(membership);
  return {.engine = make_backend_engine(ranks.options.backend, site, ranks.deadline), .about = "chosen by the backend"};
}

Connected connected(RanksToConnect& ranks) {
  if (!is_native(ranks.options.backend)) return over_backend(ranks);
  if (ranks.membership.size == 1) return shared_memory_transport().connect(ranks);
  return connect_by_transport(ranks);
}

// Over shared memory within nodes and TCP between them, unless TCP is required.
std::unique_ptr<Mesh> messages_for(const RanksToConnect& ranks, Engine& engine) {
  GroupOptions options = ranks.options;
  if (options.transport != kTcpTransport) options.transport = kAutomaticTransport;
  try {
    if (ranks.known.messages.serve(options)) ranks.own.messages = ranks.known.messages;
    return message_mesh_between_hosts(ranks.membership, ranks.name, options, ranks.own.messages, ranks.deadline);
  } catch (const Error& error) {
    engine.abort(error.what());  // for ranks that run a collective already
    throw;
  }
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

void log_choice(const RanksToConnect& ranks, const Connected& made) {
  const Membership& membership = ranks.membership;
  log_debug(fmt::format("group {}: rank {} of {}, {}, backend {}, data over {}: {}. Timeout {:.0f} s, address {}",
                        ranks.name, membership.rank, membership.size, layout_of(membership),
                        ranks.options.backend.empty() ? kNativeBackend : ranks.options.backend, made.engine->name(),
                        made.about, seconds(ranks.options.timeout),
                        membership.members[static_cast<std::size_t>(membership.rank)].address));
}

template <class Enum>
void refuse_unknown(Enum value, Enum last, std::string_view option) {
  if (value >= Enum{} && value <= last) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("GroupOptions::{} is {}, which is no choice", option, static_cast<int>(value)));
}

}  // namespace

GroupOptions with_environment(GroupOptions options) {
  refuse_unknown(options.checksums, Checksums::off, "checksums");
  refuse_unknown(options.call_sites, CallSites::must_match, "call_sites");
  const EnvironmentReader reader;
  options.transport = choose_transport(options.transport);
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
  return fmt::format("backend {}, transport {}", options.backend.empty() ? kNativeBackend : options.backend,
                     options.transport);
}

namespace {

// Ranks with different ones would wait for each other for ever. `automatic` can differ, too: between programs.
void compare_choices(const Membership& membership, const GroupOptions& options, Deadline deadline) {
  std::string mine = describe_choices(options), separator = " of ";
  for (const TransportEntry& entry : candidates(options.transport)) {
    if (options.transport != kAutomaticTransport) break;
    mine += std::exchange(separator, ", ") + entry.name;
  }
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
  origin->connections.heaps = known.heaps;
  RanksToConnect ranks{membership, name, known, origin->connections, deadline, std::move(options)};
  Connected made = connected(ranks);
  if (made.messages == nullptr) made.messages = messages_for(ranks, *made.engine);
  log_choice(ranks, made);
  return ProcessGroup(std::move(made.engine), ranks.options, std::move(made.messages), std::move(origin));
}

ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& wanted,
                           Deadline deadline) {
  process_recorder({.rank = membership.rank, .world_size = membership.size, .job_id = membership.job_id});
  if (membership.size > 1) detect_suspension();
  choose_vector_kernels();
  GroupOptions options = wanted;
  options.backend = choose_backend(wanted.backend);
  options.transport = choose_transport(wanted.transport);
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
