// What others are told of the job: a program of the user's, and who asks from outside.
#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/job/elastic/hello.h"
#include "lockstep/job/elastic/local_coordinator.h"

namespace lockstep::internal {

void LocalCoordinator::tell_event(JobEvent::Kind kind) const {
  if (!options_.on_event) return;
  JobEvent event{.kind = kind,
                 .job_id = job_id_,
                 .run_id = options_.rdzv_id.empty() ? job_id_ : options_.rdzv_id,
                 .attempt = std::max(machine_.generation(), 0),
                 .world_size = world_size(machine_.slots()),
                 .stop_signal = kind == JobEvent::Kind::start ? 0 : machine_.outcome().stop_signal,
                 .exit_code = machine_.result().exit_code};
  // Before the last ranks have ended another host may come, and the job goes on.
  if (kind == JobEvent::Kind::stop && event.stop_signal == 0) event.stop_signal = SIGTERM;
  for (const Slot& slot : machine_.slots()) {
    const HostEntry* host = machine_.find(slot.host);
    if (host != nullptr) event.hosts.push_back({shown_name(*host), slot.first_rank, slot.ranks});
  }
  if (kind == JobEvent::Kind::restart && !outcomes_.empty()) event.outcome = outcomes_.back();
  if (kind == JobEvent::Kind::loss || kind == JobEvent::Kind::end) event.outcome = machine_.outcome();
  options_.on_event(event);
}

// On the first host, and at the other ones' own standard error.
void LocalCoordinator::announce(const std::string& line) {
  output_.say(line);
  for (Connection& connection : connections_) {
    if (connection.number >= 0) connection.link.send(Notice{line});
  }
}

// Where names are not left out.
std::string LocalCoordinator::shown_name(const HostEntry& host) const {
  return host.name.empty() ? agent_host_name() : host.name;
}

int LocalCoordinator::port_of(const std::string& rdzv_id) const {
  if (rdzv_id == options_.rdzv_id) return listener_->port();
  const auto job = other_jobs_.find(rdzv_id);
  return job == other_jobs_.end() ? 0 : job->second.port;
}

bool LocalCoordinator::is_elsewhere(Connection& connection, const std::string& rdzv_id) {
  if (rdzv_id == options_.rdzv_id) return false;
  connection.link.send(Elsewhere{port_of(rdzv_id)});
  return true;
}

void LocalCoordinator::answer(Connection& connection, const AskStatus& question) {
  if (is_elsewhere(connection, question.rdzv_id)) return;
  connection.asks_status = true;
  for (const HostEntry& host : machine_.hosts()) connection.asks_hosts.insert(host.number);
  for (const int host : std::set<int>(connection.asks_hosts)) tell(host, TellStatus{});
}

// A second one is as a second Ctrl-C.
void LocalCoordinator::answer(Connection& connection, const StopJob& question) {
  if (is_elsewhere(connection, question.rdzv_id)) return;
  connection.waits_for_end = true;
  connection.link.send(Welcome{0, job_id_});
  if (machine_.over()) return connection.link.send(Farewell{machine_.result().exit_code, machine_.result().text});
  hear_request(kOutside, SIGINT, steady_clock().now());
}

// Null: the host has gone.
void LocalCoordinator::pass_on_status(int host, const HostStatus* status) {
  for (Connection& connection : connections_) {
    if (connection.asks_hosts.erase(host) > 0 && status != nullptr) connection.link.send(*status);
    if (!connection.asks_status || !connection.asks_hosts.empty()) continue;
    connection.asks_status = false;
    connection.link.send(StatusDone{job_id_, world_size(machine_.slots())});
  }
}

// Between attempts only if hosts are missing: else the next one follows.
void LocalCoordinator::tell_monitor() const {
  const bool gathers = !machine_.running() && !machine_.over() && (outcomes_.empty() || !machine_.waits_for().empty());
  if (options_.monitor == nullptr || !gathers) return;
  std::vector<HostOfEvent> hosts;
  for (const HostEntry& host : machine_.hosts()) {
    if (is_available(host)) hosts.push_back({.name = shown_name(host), .ranks = host.ranks});
  }
  options_.monitor->on_gathering(hosts);
}

void LocalCoordinator::tell_monitor(int host, const RankCounts& counts) const {
  const HostEntry* from = machine_.find(host);
  if (options_.monitor == nullptr || from == nullptr || counts.generation != machine_.generation()) return;
  options_.monitor->on_ranks(shown_name(*from), {counts.status});
}

void LocalCoordinator::tell_monitor(const JobHang::Result& result) const {
  if (options_.monitor == nullptr) return;
  if (!hang_->has_told()) options_.monitor->on_hang("");
  if (!result.why.empty()) options_.monitor->on_hang(result.why);
}

}  // namespace lockstep::internal
