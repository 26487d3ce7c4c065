#include "lockstep/rendezvous/rendezvous_endpoint.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/net/handshake.h"
#include "lockstep/rendezvous/local_node.h"
#include "lockstep/rendezvous/plan_completion.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/memory_store.h"
#include "lockstep/store/store_server.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep {
namespace {

// How long rank 0 waits for the process that holds its port to answer as a store of this job.
constexpr Duration kHolderTimeout = std::chrono::seconds(1);

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

// A store takes two connections per rank while they join, and this rank one to each peer; with the usual soft limit, a
// few hundred ranks would wait silently.
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
  options.identity = local_identity(plan.rank, plan.size, plan.generation);
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
            fmt::format("rank {} waited {:.1f} s for {}, which is to host the job's store, and it did not come: {}",
                        plan.rank, waited, host, error.what()),
            {.rank = plan.rank,
             .peer = plan.rendezvous == Meeting::rank_zero ? 0 : -1,
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
        throw Error(bind_error.kind(), fmt::format("{}; MASTER_PORT sets another", bind_error.what()));
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

}  // namespace lockstep
