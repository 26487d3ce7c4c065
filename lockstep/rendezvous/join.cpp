#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/health/process_watch.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/net/handshake.h"
#include "lockstep/rendezvous/handlers.h"
#include "lockstep/rendezvous/registration.h"
#include "lockstep/rendezvous/join_plan.h"
#include "lockstep/rendezvous/local_node.h"
#include "lockstep/health/peer_watch.h"
#include "lockstep/rendezvous/plan_completion.h"
#include "lockstep/rendezvous/probe.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/health/watched_store.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/memory_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/store_server.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep {
namespace {

// How long rank 0 asks whoever holds its port whether that is a store of this job.
constexpr Duration kHolderTimeout = std::chrono::seconds(1);
// How long the host of a store that ends keeps it for the others, who still have to read there why.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr const char* kIntroductions = "rendezvous";  // what the introduction uses of a world's store

// The token that the user has said, if any.
std::optional<Token> given_token(const JoinOptions& options, const JoinPlan& plan) {
  if (options.token) return options.token;
  if (plan.token_fd) return Token::from_fd(*plan.token_fd);
  if (!plan.token_file.empty()) return Token::from_file(plan.token_file);
  return std::nullopt;
}

Token token_for(const JoinOptions& options, const JoinPlan& plan) {
  if (const auto token = given_token(options, plan)) return *token;
  return is_on_this_host(plan.endpoint) ? Token::from_this_host() : Token::from_home();
}

HandshakeSettings settings_for(const JoinPlan& plan, const Token& token) {
  return {.token = token,
          .job_id = plan.job_id,
          .channel = Channel::store,
          .mine = local_identity(plan.rank, plan.size, plan.generation)};
}

// A store takes two connections a rank while they join, and this rank one to each other; the usual soft limit would
// hold a few hundred ranks up without a word.
void allow_connections(int ranks) {
  const rlim_t wanted = static_cast<rlim_t>(ranks) * 4 + 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == wanted) return;
  log_warning(
      fmt::format("this process, which hosts the store of {} ranks, may have {} descriptors, and {} are wanted: "
                  "raise the limit (ulimit -n) before it starts",
                  ranks, std::max(before, limit.rlim_cur), wanted));
}

std::shared_ptr<StoreServer> host_store(const JoinPlan& plan, const Token& token) {
  allow_connections(plan.size);
  StoreServerOptions options{.token = token, .job_id = plan.job_id};
  options.claims = local_identity(plan.rank, plan.size, plan.generation);
  options.admission = admit_generation(plan.generation);
  auto server = std::make_shared<StoreServer>(Endpoint{plan.bind_host, plan.endpoint.port}, std::move(options));
  const std::string& name = plan.endpoint.host;
  if (server->address().is_loopback() && name != "localhost" && name != server->address().host()) {
    log_warning(
        fmt::format("'{}' is the loopback address {} on this host, so ranks on other hosts cannot reach it; if there "
                    "are any, use an address of the network",
                    name, server->address().host()));
  }
  return server;
}

struct MeetingPlace {
  std::shared_ptr<Store> store;
  std::shared_ptr<StoreServer> hosted;
  std::string address;
};

// The numeric address of this host from which the store was reached.
std::string reach(TcpStore& store, const JoinPlan& plan, Deadline deadline, Duration notice_after) {
  const std::string host = plan.meeting == Meeting::rank_zero ? "rank 0" : "the launcher";
  const TimePoint start = steady_clock().now();
  for (LongWait long_wait(notice_after);;) {
    try {
      return store.connect(std::min(deadline, Deadline::after(notice_after)));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timeout) throw;
      const double waited = seconds(steady_clock().now() - start);
      if (deadline.expired()) {
        throw Error(
            ErrorKind::timeout,
            fmt::format("rank {} waited {:.1f} s for {}, which is to host the job's store, and it did not come: {}",
                        plan.rank, waited, host, error.what()),
            {.rank = plan.rank,
             .peer = plan.meeting == Meeting::rank_zero ? 0 : -1,
             .operation = "join",
             .elapsed_seconds = waited});
      }
      if (long_wait.due()) {
        log_warning(fmt::format("rank {} has waited {:.0f} s for {}, which is to host the job's store: {}", plan.rank,
                                waited, host, error.what()));
      }
    }
  }
}

// `hosted`: the store, if rank 0 has it already.
MeetingPlace meet_over_tcp(const JoinPlan& plan, const Token& token, Deadline deadline, Duration notice_after,
                           std::shared_ptr<StoreServer> hosted = nullptr) {
  MeetingPlace place;
  place.hosted = std::move(hosted);
  auto store = std::make_shared<TcpStore>(plan.endpoint, settings_for(plan, token));
  if (plan.meeting == Meeting::rank_zero && plan.rank == 0 && place.hosted == nullptr) {
    try {
      place.hosted = host_store(plan, token);
    } catch (const Error& bind_error) {
      // Another rank 0 of this job may hold the port; then both are named when this one claims the rank.
      if (bind_error.kind() != ErrorKind::invalid_argument) throw;
      try {
        store->connect(std::min(deadline, Deadline::after(kHolderTimeout)));
      } catch (const Error&) {
        if (!plan.launched) throw bind_error;
        throw Error(bind_error.kind(), fmt::format("{}; MASTER_PORT sets another", bind_error.what()));
      }
    }
  }
  place.address = reach(*store, plan, deadline, notice_after);
  place.store = std::move(store);
  return place;
}

MeetingPlace meet(const JoinOptions& options, const JoinPlan& plan, const Token& token, Deadline deadline) {
  switch (plan.meeting) {
    case Meeting::given_store: return {options.store, nullptr, first_interface_address()};
    case Meeting::file: {
      const std::string run_id = fmt::format("{}/{}", plan.job_id, plan.generation);
      return {std::make_shared<FileStore>(plan.path, run_id, deadline), nullptr, first_interface_address()};
    }
    case Meeting::launcher:
    case Meeting::rank_zero: return meet_over_tcp(plan, token, deadline, options.notice_after);
    case Meeting::bootstrap:  // has become one of the others
    case Meeting::alone: break;
  }
  return {std::make_shared<MemoryStore>(), nullptr, "127.0.0.1"};
}

// Those that LOCKSTEP_IFNAME names, in its order.
std::vector<Interface> named_interfaces(const std::string& names) {
  const std::vector<Interface> all = network_interfaces();
  std::vector<Interface> chosen;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    const auto found = std::ranges::find(all, name, &Interface::name);
    if (found == all.end()) {
      std::vector<std::string> known;
      for (const Interface& each : all) known.push_back(each.name);
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("LOCKSTEP_IFNAME is \"{}\", but this host has no network interface \"{}\" that is up and "
                              "has an address; it has: {}",
                              names, name, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

// Where peers may reach this process. `address`: the end of its connection to the store, which is a good guess.
std::vector<Interface> candidates(const JoinPlan& plan, const std::string& address) {
  if (!plan.address.empty()) return {{"LOCKSTEP_ADDRESS", plan.address}};
  if (!plan.interfaces.empty()) return named_interfaces(plan.interfaces);
  std::vector<Interface> all = network_interfaces();
  const auto preferred = std::ranges::find(all, address, &Interface::address);
  if (preferred == all.end()) return {{"", address}};  // loopback, or an alias that no interface has as its first
  std::rotate(all.begin(), preferred, preferred + 1);
  return all;
}

std::string own_address(const JoinPlan& plan) { return candidates(plan, first_interface_address()).front().address; }

// Rank 0 hosts the store before it says where.
MeetingPlace meet_by_bootstrap(const JoinOptions& options, JoinPlan& plan, Token& token, Deadline deadline) {
  const Bootstrap bootstrap = options.bootstrap();
  adopt(bootstrap, plan);
  if (plan.meeting == Meeting::alone) return meet(options, plan, token, deadline);
  std::shared_ptr<StoreServer> hosted;
  const auto host = [&](const Token& of_job) {
    hosted = host_store(plan, of_job);
    return hosted->port();
  };
  token = invite(bootstrap, given_token(options, plan), own_address(plan), host, plan, deadline);
  return meet_over_tcp(plan, token, deadline, options.notice_after, std::move(hosted));
}

// Whether this is the one process of its host that says what concerns them all, as far as can be known now.
bool speaks_for_host(const JoinPlan& plan) {
  if (plan.local_rank) return *plan.local_rank == 0;
  return EnvironmentReader().text("LOCAL_RANK").value_or("0") == "0";
}

Member describe_self(const JoinPlan& plan, const std::string& address) {
  Member me;
  me.rank = plan.rank;
  me.host = local_identity(plan.rank, plan.size, plan.generation).host;
  me.node_id = local_node_id(plan.node_label);
  me.interfaces = candidates(plan, address);
  me.address = me.interfaces.front().address;
  me.pid = ::getpid();
  me.process_start = process_stat(me.pid).start;
  return me;
}

// Nodes are numbered in the order of their lowest rank; what a launcher has said about this process wins.
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
      fmt::format("{} says that others reach it at {}, which is its own host's loopback address. On that host the "
                  "job's address probably resolves to loopback: use an address of the network in MASTER_ADDR, or set "
                  "LOCKSTEP_ADDRESS there",
                  to_string(*local), local->address));
}

// A process may join, leave and join again, or take the place of one that has ended: the n-th world of a generation has
// keys of its own.
void meet_others(const JoinPlan& plan, const Member& me, const std::shared_ptr<Store>& store, Deadline deadline,
                 Duration notice_after, Membership& membership) {
  for (int round = 0; membership.members.empty(); ++round) {
    membership.store =
        std::make_shared<PrefixStore>(store, fmt::format("{}/{}/{}", plan.job_id, plan.generation, round));
    const auto introductions = std::make_shared<PrefixStore>(membership.store, kIntroductions);
    membership.watch = std::make_shared<PeerWatch>(introductions, me, plan.size, "joining the job");
    // If the host of the store dies, the others learn it without its word.
    if (!membership.hosted) membership.watch->begin(deadline);
    const RegistrationOptions how{membership.watch.get(), notice_after};
    membership.members = register_rank(*introductions, me, plan.size, deadline, how).value_or(std::vector<Member>());
    if (membership.members.empty()) {
      membership.watch->end(deadline);
    } else if (membership.hosted) {
      wait_for_all_registered(*introductions, me, plan.size, deadline, how);
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
  const Deadline deadline = Deadline::after(given.timeout);
  const JoinOptions options = after_handler(given, deadline);
  JoinPlan plan = plan_join(options, environment);
  if (options.store != given.store) plan.source = given.init_method;
  if (speaks_for_host(plan)) warn_of_unknown_variables();
  if (plan.job_fd) name_job_after_launcher(plan);
  Membership membership;
  MeetingPlace place;
  if (plan.meeting == Meeting::bootstrap) {
    place = meet_by_bootstrap(options, plan, membership.token, deadline);
  } else {
    membership.token = plan.meeting == Meeting::alone ? Token::generate() : token_for(options, plan);
    const bool hosts = plan.meeting == Meeting::rank_zero && plan.rank == 0;
    if (hosts && plan.launched) avoid_own_loopback(plan, own_address(plan), deadline);
  }
  say_source(plan);
  membership.rank = plan.rank;
  membership.size = plan.size;
  membership.generation = plan.generation;
  membership.job_id = plan.job_id;
  membership.source = plan.source;

  if (place.store == nullptr) place = meet(options, plan, membership.token, deadline);
  membership.hosted = std::move(place.hosted);
  const Member me = describe_self(plan, place.address);
  try {
    meet_others(plan, me, std::exchange(place.store, nullptr), deadline, options.notice_after, membership);
    place_ranks(plan, membership);
    if (needs_probe(membership.members)) {
      const auto watched = std::make_shared<WatchedStore>(membership.store, membership.watch);
      choose_addresses({plan.rank, plan.generation, plan.job_id, membership.token}, membership.members, *watched,
                       deadline);
    }
    check_addresses(membership.members, membership.nodes);
  } catch (const Error& error) {
    throw abandon_joining(membership, error);
  }
  if (plan.size == 1) finish_joining(membership, deadline);
  return membership;
}

void finish_joining(const Membership& membership, Deadline deadline) noexcept {
  if (membership.watch == nullptr || membership.watch->is_over()) return;
  try {
    PrefixStore introductions(membership.store, kIntroductions);
    clear_registration(introductions, membership.rank, membership.size, deadline);
  } catch (const std::exception&) {  // who does not host the store need not find it any more
  }
  membership.watch->end(deadline);
  if (membership.hosted) membership.hosted->wait_for_wills(deadline, membership.next_will);
}

Error abandon_joining(const Membership& membership, const Error& error) {
  if (membership.watch == nullptr || membership.watch->is_over()) return error;
  // A process that was refused, since another one holds its rank, is none of the others' business.
  Error cause = membership.members.empty() ? error : membership.watch->cause_of(error);
  if (membership.hosted) membership.hosted->wait_for_wills(Deadline::after(kFarewell));
  return cause;
}

}  // namespace lockstep
