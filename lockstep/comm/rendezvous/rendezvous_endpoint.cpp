#include "lockstep/comm/rendezvous/rendezvous_endpoint.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/rendezvous/launchers.h"
#include "lockstep/comm/rendezvous/local_node.h"
#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/store/store_server.h"
#include "lockstep/comm/store/tcp_store.h"

namespace lockstep::internal {
namespace {

// How long rank 0 waits for the process that holds its port to answer as a store of this job.
constexpr Duration kHolderTimeout = std::chrono::seconds(1);

struct StoreLocation {
  std::string failure;  // why there is no store
  Endpoint store;
  Bytes token;  // empty if all have been given one
};

Bytes encode(const StoreLocation& location) {
  Bytes out;
  put_bytes(out, location.failure);
  put_bytes(out, location.failure.empty() ? to_string(location.store) : "");
  put_bytes(out, location.token);
  return out;
}

StoreLocation decode(ByteView encoded) {
  WireReader reader(encoded, "rank 0's location");
  StoreLocation location;
  location.failure = reader.bytes();
  const ByteView store = reader.bytes();
  if (location.failure.empty()) location.store = parse_endpoint(store);
  location.token = reader.bytes();
  return location;
}

// Whether only processes of this host can reach it.
bool is_on_this_host(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "::1" || endpoint.host.starts_with("127.");
}

// Ranks that share one process of their launcher are distinguished from other jobs by its pid: the job's name and the
// store's port are derived from it. Error{invalid_argument} if plan.job_fd does not lead to it.
void name_job_after_launcher(JoinPlan& plan) {
  ucred launcher{};
  socklen_t length = sizeof launcher;
  if (::getsockopt(*plan.job_fd, SOL_SOCKET, SO_PEERCRED, &launcher, &length) != 0 || launcher.pid <= 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} has passed no connection in descriptor {}, so the ranks cannot identify their job; "
                            "set MASTER_PORT to a free port, the same for all ranks",
                            plan.source, *plan.job_fd));
  }
  const std::string job = fmt::format("process-{}", launcher.pid);
  plan.endpoint.port = port_of_job(job);
  if (plan.job_id == kDefaultJobId) plan.job_id = job;
}

// On many hosts /etc/hosts maps the host's own name to a loopback address, while other hosts resolve it to the real
// one: there, rank 0 of a launched job hosts the store at `own_address` instead. Blocks for the resolver.
void avoid_own_loopback(JoinPlan& plan, const std::string& own_address, Deadline deadline) {
  if (plan.bind_host != plan.endpoint.host || is_on_this_host(plan.endpoint)) return;
  if (!resolve(plan.endpoint, deadline).front().is_loopback()) return;
  plan.endpoint.host = own_address;
  plan.bind_host = own_address;
}

// Rank and size from the library that started the ranks. Error{invalid_argument} if a launcher says otherwise.
void adopt(const Bootstrap& bootstrap, JoinPlan& plan) {
  if (plan.expected_size.value_or(bootstrap.size) != bootstrap.size) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{0} says rank {1} of {2}, but the launcher has started {3} processes: start the program with the "
                    "launcher of the {0} that it links, or set LOCKSTEP_LAUNCHER=none for worlds of one",
                    bootstrap.name, bootstrap.rank, bootstrap.size, *plan.expected_size));
  }
  plan.rank = bootstrap.rank;
  plan.size = bootstrap.size;
  plan.source = bootstrap.name;
  plan.launched = true;
  plan.rendezvous = plan.size == 1 ? Meeting::alone : Meeting::rank_zero;
}

// Has the library send the store's endpoint and a token from rank 0 to the others. On rank 0 `host` makes the store and
// returns its port; an error of it is an error on all ranks. Without a given token rank 0 generates one for the job.
// Returns the job's token.
Token share_store(const Bootstrap& bootstrap, const std::optional<Token>& given, const std::string& own_address,
                  const std::function<std::uint16_t(const Token& token)>& host, JoinPlan& plan, Deadline deadline) {
  const Token token = given ? *given : Token::generate();
  StoreLocation location;
  if (plan.rank == 0) {
    if (plan.endpoint.host.empty()) plan.endpoint.host = own_address;
    if (plan.bind_host.empty()) plan.bind_host = plan.endpoint.host;
    try {
      location.store = {plan.endpoint.host, host(token)};
    } catch (const Error& error) {
      location.failure = error.what();
    }
    if (!given) location.token.assign(reinterpret_cast<const char*>(token.bytes().data()), Token::kBytes);
  }
  location = decode(bootstrap.from_rank_zero(encode(location), deadline));
  if (!location.failure.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "rank 0 cannot make a store that the other ranks reach: " + location.failure);
  }
  plan.endpoint = location.store;
  return given ? *given : Token::from_bytes(location.token);
}

// Logs where rank and size came from: once, on rank 0.
void log_source(const JoinPlan& plan) {
  if (!plan.advice.empty()) log_info(plan.advice);
  if (plan.rank != 0) return;
  const bool by_nobody = plan.source == kAlone;
  std::string text = fmt::format("rank {} of {}, {}{}", plan.rank, plan.size, by_nobody ? "" : "from ", plan.source);
  if (plan.size > 1 && !plan.endpoint.host.empty()) text += "; the store is at " + to_string(plan.endpoint);
  const bool is_news = plan.launched && plan.size > 1;
  log(is_news ? LogLevel::info : LogLevel::debug, text);
}

// The token that the user has set, if any.
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

// A store takes two connections per rank while they join, and this rank one to each peer; without, a few hundred ranks
// would wait silently.
void check_descriptors(int ranks) {
  const rlim_t wanted = static_cast<rlim_t>(ranks) * 4 + 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  log_warning(
      fmt::format("this process, which hosts the store of {} ranks, is limited to {} descriptors but needs {}: "
                  "raise the limit (ulimit -n) before it starts",
                  ranks, limit.rlim_cur, wanted));
}

std::shared_ptr<StoreServer> host_store(const JoinPlan& plan, const Token& token) {
  check_descriptors(plan.size);
  StoreServerOptions options{.token = token, .job_id = plan.job_id};
  options.identity = local_identity(plan.rank, plan.size, plan.generation);
  options.admission = admit_generation(plan.generation);
  auto server = std::make_shared<StoreServer>(Endpoint{plan.bind_host, plan.endpoint.port}, std::move(options));
  const std::string& name = plan.endpoint.host;
  if (server->address().is_loopback() && name != "localhost" && name != server->address().host()) {
    log_warning(
        fmt::format("'{}' is the loopback address {} on this host, so ranks on other hosts cannot reach it; if the job "
                    "has other hosts, use an address of the network",
                    name, server->address().host()));
  }
  return server;
}

// The numeric address of this host from which the store was reached.
std::string reach(TcpStore& store, const JoinPlan& plan, Deadline deadline, Duration notice_after) {
  const std::string host = plan.rendezvous == Meeting::rank_zero ? "rank 0" : "the launcher";
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
            fmt::format("rank {} waited {:.1f} s for {}, which hosts the job's store, but could not reach it: {}",
                        plan.rank, waited, host, error.what()),
            {.rank = plan.rank,
             .peer = plan.rendezvous == Meeting::rank_zero ? 0 : -1,
             .operation = "join",
             .elapsed_seconds = waited});
      }
      if (long_wait.due()) {
        log_warning(fmt::format("rank {} has waited {:.0f} s for {}, which hosts the job's store: {}", plan.rank,
                                waited, host, error.what()));
      }
    }
  }
}

// `hosted`: the store, if rank 0 has it already.
RendezvousEndpoint open_tcp_store(const JoinPlan& plan, const Token& token, Deadline deadline, Duration notice_after,
                                  std::shared_ptr<StoreServer> hosted = nullptr) {
  RendezvousEndpoint place;
  place.hosted = std::move(hosted);
  auto store = std::make_shared<TcpStore>(plan.endpoint, settings_for(plan, token));
  if (plan.rendezvous == Meeting::rank_zero && plan.rank == 0 && place.hosted == nullptr) {
    try {
      place.hosted = host_store(plan, token);
    } catch (const Error& bind_error) {
      // Another rank 0 of this job may hold the port; then registration names both.
      if (bind_error.kind() != ErrorKind::invalid_argument) throw;
      try {
        store->connect(std::min(deadline, Deadline::after(kHolderTimeout)));
      } catch (const Error&) {
        if (!plan.launched) throw bind_error;
        throw Error(bind_error.kind(), fmt::format("{}; choose another port with MASTER_PORT", bind_error.what()));
      }
    }
  }
  place.address = reach(*store, plan, deadline, notice_after);
  place.store = std::move(store);
  return place;
}

RendezvousEndpoint open_store(const JoinOptions& options, const JoinPlan& plan, const Token& token, Deadline deadline) {
  switch (plan.rendezvous) {
    case Meeting::given_store: return {options.store, nullptr, first_interface_address()};
    case Meeting::file: {
      const std::string run_id = fmt::format("{}/{}", plan.job_id, plan.generation);
      return {std::make_shared<FileStore>(plan.path, run_id, deadline), nullptr, first_interface_address()};
    }
    case Meeting::launcher:
    case Meeting::rank_zero: return open_tcp_store(plan, token, deadline, options.notice_after);
    case Meeting::bootstrap:  // has become one of the others
    case Meeting::alone: break;
  }
  return {std::make_shared<MemoryStore>(), nullptr, "127.0.0.1"};
}

std::string own_address(const JoinPlan& plan) {
  return interfaces_to_advertise(plan.address, plan.interfaces, first_interface_address()).front().address;
}

// Rank 0 hosts the store before it sends the endpoint.
RendezvousEndpoint open_store_by_bootstrap(const JoinOptions& options, JoinPlan& plan, Token& token,
                                           Deadline deadline) {
  const Bootstrap bootstrap = options.bootstrap();
  adopt(bootstrap, plan);
  if (plan.rendezvous == Meeting::alone) return open_store(options, plan, token, deadline);
  std::shared_ptr<StoreServer> hosted;
  const auto host = [&](const Token& of_job) {
    hosted = host_store(plan, of_job);
    return hosted->port();
  };
  token = share_store(bootstrap, given_token(options, plan), own_address(plan), host, plan, deadline);
  return open_tcp_store(plan, token, deadline, options.notice_after, std::move(hosted));
}

}  // namespace

RendezvousEndpoint open_endpoint(const JoinOptions& options, JoinPlan& plan, Token& token, Deadline deadline) {
  if (plan.job_fd) name_job_after_launcher(plan);
  if (plan.rendezvous == Meeting::bootstrap) {
    RendezvousEndpoint opened = open_store_by_bootstrap(options, plan, token, deadline);
    log_source(plan);
    return opened;
  }
  token = plan.rendezvous == Meeting::alone ? Token::generate() : token_for(options, plan);
  const bool hosts = plan.rendezvous == Meeting::rank_zero && plan.rank == 0;
  if (hosts && plan.launched) avoid_own_loopback(plan, own_address(plan), deadline);
  log_source(plan);
  return open_store(options, plan, token, deadline);
}

}  // namespace lockstep::internal
