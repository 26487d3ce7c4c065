// Hosts that are asked to leave, that do not reach another one, or whose agents are stopped.
#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/elastic/front_desk.h"

namespace lockstep::internal {

// With MIN < MAX a SIGTERM is for the host that gets it, as when a pod is evicted; everything else is for the job.
void FrontDesk::hear_request(int host, int signal, TimePoint now) {
  const HostEntry* const from = roll_.find(host);
  if (from == nullptr && host != kOutside) return;
  const std::string where = host == kOutside     ? " of `lockstep stop`"
                            : host == kFirstHost ? ""
                                                 : fmt::format(" at host {}", from->name);
  const bool is_new = roll_.outcome().stop_signal == 0;
  if (signal == SIGTERM && roll_.is_elastic() && is_new) {
    if (from->leaves) return roll_.leave(host, now);
    announce(fmt::format("SIGTERM{}: host {} leaves the job (once more to kill its ranks)", where, from->name));
    roll_.leave(host, now);
    if (roll_.are_back() && std::ranges::all_of(roll_.hosts(), &HostEntry::leaves)) tell_event(JobEvent::Kind::stop);
    return;
  }
  if (is_new) announce(fmt::format("{}{}: stopping the job (once more to kill)", signal_name(signal), where));
  const bool insisted = roll_.insisted();
  roll_.ask_to_stop(host, signal, now);
  if (roll_.insisted() && !insisted) announce(fmt::format("{}{} again: killing the ranks", signal_name(signal), where));
  if (is_new) tell_event(JobEvent::Kind::stop);
}

void FrontDesk::dismiss(int host) {
  for (Visitor& visitor : visitors_) {
    if (visitor.number != host) continue;
    visitor.link.send(Notice{"this host has left the job, which goes on"});
    visitor.link.send(Farewell{kLeftExitCode, ""});
    visitor.number = -1;
  }
}

void FrontDesk::keep_out(int host, int other) {
  announce(describe(roll_.outcome().lost.back()));
  tell_event(JobEvent::Kind::loss);
  tell(host, KeepOut{hello_from(other)->host, address_of(other)});
}

// This host leaves, and with it the store and the place where the others meet: they go on from where they meet next.
void FrontDesk::leave_to_others() {
  post_->close();
  tell_event(JobEvent::Kind::end);
  const auto is_host = [](const Visitor& visitor) { return visitor.number >= 0; };
  const int others = static_cast<int>(std::ranges::count_if(visitors_, is_host));
  for (Visitor& visitor : visitors_) {
    if (visitor.number < 0) continue;
    visitor.link.send(Notice{
        fmt::format("the first host {} has left: meeting anew at {}", own_hello_.host, to_string(options_.endpoint))});
    visitor.link.send(MeetAnew{{job_id_, roll_.generation(), roll_.restarts(), others}});
  }
  inbox_.push_back(Farewell{kLeftExitCode, ""});
}

// A job goes on whose first host has left. Who is here already learns what it is called.
void FrontDesk::take_over(const Handover& handover) {
  if (!roll_.take_over(handover)) return;
  job_id_ = handover.job_id;
  inbox_.push_back(Welcome{kFirstHost, job_id_});
  for (Visitor& visitor : visitors_) {
    if (visitor.number >= 0) visitor.link.send(Welcome{visitor.number, job_id_});
  }
}

// One that is stopped while its ranks are well is waited for, but not by ranks that are to end.
void FrontDesk::look_if_frozen(Visitor& visitor) {
  const Duration frozen = visitor.link.frozen_for();
  const bool is_frozen = frozen > Duration{};
  if (visitor.number < 0) return;
  if (is_frozen != std::exchange(visitor.is_frozen, is_frozen)) {
    announce(fmt::format(
        "the agent of host {} {}", visitor.hello->host,
        is_frozen ? "does not answer, though its host does: stopped, or very slow; waiting for it" : "answers again"));
  }
  if (!roll_.running() || roll_.undisturbed()) {
    ends_since_.reset();
    return;
  }
  if (!ends_since_) ends_since_ = steady_clock().now();
  const Duration waited = std::min(frozen, Duration(steady_clock().now() - *ends_since_));
  if (waited > options_.stop_grace + options_.grace) visitor.link.give_up_frozen();
}

}  // namespace lockstep::internal
