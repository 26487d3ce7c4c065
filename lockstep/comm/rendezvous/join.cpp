#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/descriptor_limit.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/process_watch.h"
#include "lockstep/comm/health/watched_store.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/rendezvous/handlers.h"
#include "lockstep/comm/rendezvous/join_plan.h"
#include "lockstep/comm/rendezvous/local_node.h"
#include "lockstep/comm/rendezvous/probe.h"
#include "lockstep/comm/rendezvous/registration.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/rendezvous/rendezvous_endpoint.h"
#include "lockstep/comm/store/prefix_store.h"
#include "lockstep/comm/store/store_server.h"

namespace lockstep {

using namespace internal;

namespace {

// How long the host of a store that ends keeps it for the others, who still have to read there why.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr const char* kRegistrations = "rendezvous";  // the part of a world's store that registration uses

// Whether this is the process that logs for all processes of its host, as far as is known now.
bool logs_for_host(const JoinPlan& plan) {
  if (plan.local_rank) return *plan.local_rank == 0;
  return EnvironmentReader().text("LOCAL_RANK").value_or("0") == "0";
}

Member describe_self(const JoinPlan& plan, const std::string& address) {
  Member me;
  me.rank = plan.rank;
  me.host = local_identity(plan.rank, plan.size, plan.generation).host;
  me.node_id = local_node_id(plan.node_label);
  me.interfaces = interfaces_to_advertise(plan.address, plan.interfaces, address);
  me.address = me.interfaces.front().address;
  me.pid = ::getpid();
  me.process_start = process_stat(me.pid).start;
  return me;
}

// Nodes are numbered in the order of their lowest rank; a launcher's own numbers take precedence.
void place_ranks(const JoinPlan& plan, Membership& membership) {
  std::map<std::string, int> node_of;
  int local_rank = 0;
  int local_size = 0;
  const std::string& own = membership.members[static_cast<std::size_t>(plan.rank)].node_id;
  for (const Member& member : membership.members) {
    node_of.emplace(member.node_id, static_cast<int>(node_of.size()));
    if (member.node_id != own) continue;
    ++local_size;
    if (member.rank < plan.rank) ++local_rank;
  }
  membership.local_rank = plan.local_rank.value_or(local_rank);
  membership.local_size = plan.local_size.value_or(local_size);
  membership.node_rank = plan.node_rank.value_or(node_of.at(own));
  membership.nodes = static_cast<int>(node_of.size());
}

bool is_loopback(const Member& member) { return member.address.starts_with("127.") || member.address == "::1"; }

// Every rank sees the same members, so an error here is an error on all of them.
void check_addresses(std::vector<Member>& members, int nodes) {
  if (nodes == 1) {
    for (Member& member : members) {
      if (!is_loopback(member)) member.address = "127.0.0.1";
    }
    return;
  }
  const auto local = std::find_if(members.begin(), members.end(), is_loopback);
  const bool all_local = std::all_of(members.begin(), members.end(), is_loopback);
  if (local == members.end() || all_local) return;
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("{} advertises the address {}, which is its own host's loopback address. On that host the "
                  "job's address probably resolves to loopback: use an address of the network in MASTER_ADDR, or set "
                  "LOCKSTEP_ADDRESS there",
                  to_string(*local), local->address));
}

// A process may join, leave and join again, or take the place of a process that has ended: the n-th world of a
// generation has keys of its own.
void register_with_others(const JoinPlan& plan, const Member& me, const std::shared_ptr<Store>& store,
                          Deadline deadline, Duration notice_after, Membership& membership) {
  for (int round = 0; membership.members.empty(); ++round) {
    membership.store =
        std::make_shared<PrefixStore>(store, fmt::format("{}/{}/{}", plan.job_id, plan.generation, round));
    const auto registrations = std::make_shared<PrefixStore>(membership.store, kRegistrations);
    membership.watch = std::make_shared<JoinWatch>(registrations, process_of(me), plan.size, "joining the job");
    // If the host of the store dies, the others notice without its last will.
    if (!membership.hosted) membership.watch->begin(deadline);
    const RegistrationOptions how{membership.watch.get(), notice_after, plan.host_timeout};
    membership.members = register_rank(*registrations, me, plan.size, deadline, how).value_or(std::vector<Member>());
    if (membership.members.empty()) {
      membership.watch->end(deadline);
    } else if (membership.hosted) {
      wait_for_all_registered(*registrations, me, plan.size, deadline, how);
      membership.next_will = membership.hosted->next_will();
    }
  }
}

// A scheme that the program has registered stands for what its handler finds.
JoinOptions after_handler(const JoinOptions& given, Deadline deadline) {
  if (given.store || given.init_method.empty()) return given;
  const Url url = parse_url(given.init_method);
  const RendezvousHandler handler = find_rendezvous_handler(url.scheme);
  if (handler == nullptr) return given;
  Rendezvous found = handler(url, deadline);
  if (found.store == nullptr) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("init_method '{}': its handler returned no store", given.init_method));
  }
  JoinOptions options = given;
  options.init_method.clear();
  options.store = std::move(found.store);
  options.rank = found.rank;
  options.world_size = found.world_size;
  return options;
}

}  // namespace

Membership join(const JoinOptions& given, const Environment& environment) {
  check_log_level();
  raise_descriptor_limit();
  const Deadline deadline = Deadline::after(given.timeout);
  const JoinOptions options = after_handler(given, deadline);
  JoinPlan plan = plan_join(options, environment);
  if (options.store != given.store) plan.source = given.init_method;
  if (logs_for_host(plan)) warn_of_unknown_variables();
  Membership membership;
  RendezvousEndpoint endpoint = open_endpoint(options, plan, membership.token, deadline);
  membership.rank = plan.rank;
  membership.size = plan.size;
  membership.generation = plan.generation;
  membership.job_id = plan.job_id;
  membership.host_timeout = plan.host_timeout;
  membership.source = plan.source;
  membership.hosted = std::move(endpoint.hosted);
  Member me = describe_self(plan, endpoint.address);
  me.gpu = options.gpu;
  try {
    register_with_others(plan, me, std::exchange(endpoint.store, nullptr), deadline, options.notice_after, membership);
    place_ranks(plan, membership);
    if (needs_probe(membership.members)) {
      const auto watched = std::make_shared<WatchedStore>(membership.store, membership.watch);
      choose_addresses({plan.rank, plan.generation, plan.job_id, membership.token, plan.host_timeout},
                       membership.members, *watched, deadline);
    }
    check_addresses(membership.members, membership.nodes);
  } catch (const Error& error) {
    throw abandon_joining(membership, error);
  }
  if (plan.size == 1) finish_joining(membership, deadline);
  return membership;
}

std::string to_string(const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", member.rank, member.host, member.pid);
}

PeerProcess process_of(const Member& member) {
  return {member.rank, to_string(member), member.node_id, member.pid, member.process_start};
}

void finish_joining(const Membership& membership, Deadline deadline) noexcept {
  if (membership.watch == nullptr || membership.watch->is_over()) return;
  try {
    PrefixStore registrations(membership.store, kRegistrations);
    clear_registration(registrations, membership.rank, membership.size, deadline);
  } catch (const std::exception&) {  // the store may be gone already, except on its host
  }
  membership.watch->end(deadline);
  if (membership.hosted) membership.hosted->wait_for_wills(deadline, membership.next_will);
}

Error abandon_joining(const Membership& membership, const Error& error) {
  if (membership.watch == nullptr || membership.watch->is_over()) return error;
  // The others are not told of a process that was refused because another one holds its rank.
  Error cause = membership.members.empty() ? error : membership.watch->cause_of(error);
  if (membership.hosted) membership.hosted->wait_for_wills(Deadline::after(kFarewell));
  return cause;
}

}  // namespace lockstep
