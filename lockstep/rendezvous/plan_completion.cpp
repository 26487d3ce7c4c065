#include "lockstep/rendezvous/plan_completion.h"

#include <sys/socket.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/net/wire.h"
#include "lockstep/rendezvous/launchers.h"

namespace lockstep {
namespace {

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

}  // namespace

bool is_on_this_host(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "::1" || endpoint.host.starts_with("127.");
}

void name_job_after_launcher(JoinPlan& plan) {
  ucred launcher{};
  socklen_t length = sizeof launcher;
  if (::getsockopt(*plan.job_fd, SOL_SOCKET, SO_PEERCRED, &launcher, &length) != 0 || launcher.pid <= 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} has left no connection to it in descriptor {}, from which the ranks would know their "
                            "job; set MASTER_PORT to a free port, the same for all",
                            plan.source, *plan.job_fd));
  }
  const std::string job = fmt::format("process-{}", launcher.pid);
  plan.endpoint.port = port_of_job(job);
  if (plan.job_id == kDefaultJobId) plan.job_id = job;
}

void avoid_own_loopback(JoinPlan& plan, const std::string& own_address, Deadline deadline) {
  if (plan.bind_host != plan.endpoint.host || is_on_this_host(plan.endpoint)) return;
  if (!resolve(plan.endpoint, deadline).front().is_loopback()) return;
  plan.endpoint.host = own_address;
  plan.bind_host = own_address;
}

void adopt(const Bootstrap& bootstrap, JoinPlan& plan) {
  if (plan.expected_size.value_or(bootstrap.size) != bootstrap.size) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{0} says rank {1} of {2}, but the launcher has started {3}: start the program with the "
                            "launcher of the {0} that it links, or set LOCKSTEP_LAUNCHER=none for worlds of one",
                            bootstrap.name, bootstrap.rank, bootstrap.size, *plan.expected_size));
  }
  plan.rank = bootstrap.rank;
  plan.size = bootstrap.size;
  plan.source = bootstrap.name;
  plan.launched = true;
  plan.rendezvous = plan.size == 1 ? Meeting::alone : Meeting::rank_zero;
}

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
    throw Error(ErrorKind::invalid_argument, "rank 0 cannot share a store with the others: " + location.failure);
  }
  plan.endpoint = location.store;
  return given ? *given : Token::from_bytes(location.token);
}

void log_source(const JoinPlan& plan) {
  if (!plan.advice.empty()) log_info(plan.advice);
  if (plan.rank != 0) return;
  const bool by_nobody = plan.source == kAlone;
  std::string text = fmt::format("rank {} of {}, {}{}", plan.rank, plan.size, by_nobody ? "" : "from ", plan.source);
  if (plan.size > 1 && !plan.endpoint.host.empty()) text += "; the store is at " + to_string(plan.endpoint);
  const bool is_news = plan.launched && plan.size > 1;
  log(is_news ? LogLevel::info : LogLevel::debug, text);
}

}  // namespace lockstep
