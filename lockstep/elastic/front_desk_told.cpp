// What others are told of the job.
#include <algorithm>
#include <utility>

#include "lockstep/elastic/front_desk.h"

namespace lockstep::internal {

void FrontDesk::tell_event(JobEvent::Kind kind) const {
  if (!options_.on_event) return;
  JobEvent event{.kind = kind,
                 .job_id = job_id_,
                 .run_id = options_.rdzv_id,
                 .attempt = std::max(roll_.generation(), 0),
                 .world_size = world_size(roll_.seats()),
                 .stop_signal = kind == JobEvent::Kind::start ? 0 : roll_.outcome().stop_signal,
                 .exit_code = roll_.result().exit_code};
  for (const Seat& seat : roll_.seats()) {
    const HostEntry* host = roll_.find(seat.host);
    if (host != nullptr) event.hosts.push_back({host->name, seat.first_rank, seat.ranks});
  }
  if (kind == JobEvent::Kind::restart && !outcomes_.empty()) event.outcome = outcomes_.back();
  if (kind == JobEvent::Kind::loss || kind == JobEvent::Kind::end) event.outcome = roll_.outcome();
  options_.on_event(event);
}

void FrontDesk::tell_monitor(int host, const RankCounts& counts) const {
  const HostEntry* from = roll_.find(host);
  if (options_.monitor == nullptr || from == nullptr || counts.generation != roll_.generation()) return;
  options_.monitor->on_ranks(from->name, {counts.status});
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
