// What others are told of the job: a program of the user's, and who asks from outside.
#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/elastic/front_desk.h"
#include "lockstep/elastic/hello.h"

namespace lockstep::internal {

void FrontDesk::tell_event(JobEvent::Kind kind) const {
  if (!options_.on_event) return;
  JobEvent event{.kind = kind,
                 .job_id = job_id_,
                 .run_id = options_.rdzv_id.empty() ? job_id_ : options_.rdzv_id,
                 .attempt = std::max(roll_.generation(), 0),
                 .world_size = world_size(roll_.seats()),
                 .stop_signal = kind == JobEvent::Kind::start ? 0 : roll_.outcome().stop_signal,
                 .exit_code = roll_.result().exit_code};
  // Before the last ranks have ended another host may come, and the job goes on.
  if (kind == JobEvent::Kind::stop && event.stop_signal == 0) event.stop_signal = SIGTERM;
  for (const Seat& seat : roll_.seats()) {
    const HostEntry* host = roll_.find(seat.host);
    if (host != nullptr) event.hosts.push_back({shown_name(*host), seat.first_rank, seat.ranks});
  }
  if (kind == JobEvent::Kind::restart && !outcomes_.empty()) event.outcome = outcomes_.back();
  if (kind == JobEvent::Kind::loss || kind == JobEvent::Kind::end) event.outcome = roll_.outcome();
  options_.on_event(event);
}

// On the first host, and at the other ones' own standard error.
void FrontDesk::announce(const std::string& line) {
  output_.say(line);
  for (Visitor& visitor : visitors_) {
    if (visitor.number >= 0) visitor.link.send(Notice{line});
  }
}

// Where names are not left out.
std::string FrontDesk::shown_name(const HostEntry& host) const {
  return host.name.empty() ? agent_host_name() : host.name;
}

int FrontDesk::port_of(const std::string& rdzv_id) const {
  if (rdzv_id == options_.rdzv_id) return post_->port();
  const auto job = other_jobs_.find(rdzv_id);
  return job == other_jobs_.end() ? 0 : job->second.port;
}

bool FrontDesk::is_elsewhere(Visitor& visitor, const std::string& rdzv_id) {
  if (rdzv_id == options_.rdzv_id) return false;
  visitor.link.send(Elsewhere{port_of(rdzv_id)});
  return true;
}

void FrontDesk::answer(Visitor& visitor, const AskStatus& question) {
  if (is_elsewhere(visitor, question.rdzv_id)) return;
  visitor.asks_status = true;
  for (const HostEntry& host : roll_.hosts()) visitor.asks_hosts.insert(host.number);
  for (const int host : std::set<int>(visitor.asks_hosts)) tell(host, TellStatus{});
}

// A second one is as a second Ctrl-C.
void FrontDesk::answer(Visitor& visitor, const StopJob& question) {
  if (is_elsewhere(visitor, question.rdzv_id)) return;
  visitor.waits_for_end = true;
  visitor.link.send(Welcome{0, job_id_});
  if (roll_.over()) return visitor.link.send(Farewell{roll_.result().exit_code, roll_.result().text});
  hear_request(kOutside, SIGINT, steady_clock().now());
}

// Null: the host has gone.
void FrontDesk::pass_on_status(int host, const HostStatus* status) {
  for (Visitor& visitor : visitors_) {
    if (visitor.asks_hosts.erase(host) > 0 && status != nullptr) visitor.link.send(*status);
    if (!visitor.asks_status || !visitor.asks_hosts.empty()) continue;
    visitor.asks_status = false;
    visitor.link.send(StatusDone{job_id_, world_size(roll_.seats())});
  }
}

// Between attempts only if hosts are missing: else the next one follows.
void FrontDesk::tell_monitor() const {
  const bool gathers = !roll_.running() && !roll_.over() && (outcomes_.empty() || !roll_.waits_for().empty());
  if (options_.monitor == nullptr || !gathers) return;
  std::vector<HostOfEvent> hosts;
  for (const HostEntry& host : roll_.hosts()) {
    if (is_available(host)) hosts.push_back({.name = shown_name(host), .ranks = host.ranks});
  }
  options_.monitor->on_gathering(hosts);
}

void FrontDesk::tell_monitor(int host, const RankCounts& counts) const {
  const HostEntry* from = roll_.find(host);
  if (options_.monitor == nullptr || from == nullptr || counts.generation != roll_.generation()) return;
  options_.monitor->on_ranks(shown_name(*from), {counts.status});
}

void FrontDesk::tell_monitor(const JobHang::Result& result) const {
  if (options_.monitor == nullptr) return;
  if (!hang_->has_told()) options_.monitor->on_hang("");
  if (!result.why.empty()) options_.monitor->on_hang(result.why);
}

std::string FrontDesk::address_of(int host) const {
  for (const Visitor& visitor : visitors_) {
    if (visitor.number == host) return visitor.link.peer_address();
  }
  return store_address();
}

const Hello* FrontDesk::hello_from(int host) const {
  for (const Visitor& visitor : visitors_) {
    if (visitor.number == host) return &*visitor.hello;
  }
  return &own_hello_;
}

}  // namespace lockstep::internal
