// Hosts that are asked to leave, that do not reach another one, or whose agents are stopped.
#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/elastic/local_coordinator.h"

namespace lockstep::internal {

// With MIN < MAX a SIGTERM is for the host that gets it, as when a pod is evicted; everything else is for the job.
void LocalCoordinator::hear_request(int host, int signal, TimePoint now) {
  const HostEntry* const from = machine_.find(host);
  if (from == nullptr && host != kOutside) return;
  const std::string where = host == kOutside     ? " of `lockstep stop`"
                            : host == kFirstHost ? ""
                                                 : fmt::format(" at host {}", from->name);
  const bool is_new = machine_.outcome().stop_signal == 0;
  if (signal == SIGTERM && machine_.is_elastic() && is_new) {
    if (from->leaves) return machine_.leave(host, now);
    announce(fmt::format("SIGTERM{}: host {} leaves the job (repeat to kill its ranks)", where, from->name));
    machine_.leave(host, now);
    if (machine_.are_back() && std::ranges::all_of(machine_.hosts(), &HostEntry::leaves))
      tell_event(JobEvent::Kind::stop);
    return;
  }
  if (is_new) announce(fmt::format("{}{}: stopping the job (repeat to kill)", signal_name(signal), where));
  const bool insisted = machine_.insisted();
  machine_.ask_to_stop(host, signal, now);
  if (machine_.insisted() && !insisted)
    announce(fmt::format("{}{} again: killing the ranks", signal_name(signal), where));
  if (is_new) tell_event(JobEvent::Kind::stop);
}

void LocalCoordinator::dismiss(int host) {
  for (Connection& connection : connections_) {
    if (connection.number != host) continue;
    connection.link.send(Notice{kLeftText});
    connection.link.send(Farewell{kLeftExitCode, ""});
    connection.number = -1;
  }
}

void LocalCoordinator::keep_out(int host, int other) {
  announce(describe(machine_.outcome().lost.back()));
  tell_event(JobEvent::Kind::loss);
  tell(host, KeepOut{hello_from(other)->host, address_of(other)});
}

// This host leaves, and with it the store and the place where the others meet: they go on from where they meet next.
void LocalCoordinator::leave_to_others() {
  listener_->close();
  output_.say(kLeftText);
  tell_event(JobEvent::Kind::end);
  const auto is_host = [](const Connection& connection) { return connection.number >= 0; };
  const int others = static_cast<int>(std::ranges::count_if(connections_, is_host));
  for (Connection& connection : connections_) {
    if (connection.number < 0) continue;
    connection.link.send(Notice{
        fmt::format("the first host {} has left: meeting again at {}", own_hello_.host, to_string(options_.endpoint))});
    connection.link.send(MeetAnew{{job_id_, machine_.generation(), machine_.restarts(), others}});
  }
  inbox_.push_back(Farewell{kLeftExitCode, ""});
}

// A job goes on whose first host has left. Who is here already learns what it is called.
void LocalCoordinator::take_over(const Handover& handover) {
  if (!machine_.take_over(handover)) return;
  job_id_ = handover.job_id;
  inbox_.push_back(Welcome{kFirstHost, job_id_});
  for (Connection& connection : connections_) {
    if (connection.number >= 0) connection.link.send(Welcome{connection.number, job_id_});
  }
}

// One that is stopped while its ranks are well is waited for, but not by ranks that are to end.
void LocalCoordinator::look_if_frozen(Connection& connection) {
  const Duration frozen = connection.link.frozen_for();
  const bool is_frozen = frozen > Duration{};
  if (connection.number < 0) return;
  if (is_frozen != std::exchange(connection.is_frozen, is_frozen)) {
    announce(fmt::format("the agent of host {} {}", connection.hello->host,
                         is_frozen
                             ? "does not answer, although its host does: it is stopped or very slow; waiting for it"
                             : "answers again"));
  }
  if (!machine_.running() || machine_.undisturbed()) {
    ends_since_.reset();
    return;
  }
  if (!ends_since_) ends_since_ = steady_clock().now();
  const Duration waited = std::min(frozen, Duration(steady_clock().now() - *ends_since_));
  if (waited > options_.stop_grace + options_.grace) connection.link.give_up_frozen();
}

}  // namespace lockstep::internal
