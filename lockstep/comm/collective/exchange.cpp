#include "lockstep/comm/collective/exchange.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/settle_desync.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {

Exchange::Exchange(Mesh& mesh, Topology topology, const LinkTuning& tuning)
    : mesh_(mesh),
      topology_(std::move(topology)),
      tuning_(tuning),
      links_(mesh),
      pipeline_(mesh.rank(), links_.streams(), topology_, tuning_),
      tree_(mesh.rank(), links_.streams(), topology_),
      monitor_(links_, tuning_) {
  interests_.reserve(links_.streams().size());
}

void Exchange::run(const Collective& collective, const Signature& signature, Deadline deadline) {
  begin(collective, signature, deadline);
  try {
    for (Progress progress = advance(); progress != Progress::done; progress = advance()) {
      if (progress == Progress::idle) wait();
    }
  } catch (const Error& error) {
    throw settle(error);
  }
}

void Exchange::begin(const Collective& collective, const Signature& signature, Deadline deadline) {
  deadline_ = deadline;
  route_ = route_of(collective, topology_, tuning_);
  executor_ = route_ == Route::tree ? static_cast<Executor*>(&tree_) : &pipeline_;
  pipeline_.set_route(route_);
  monitor_.begin(route_);
  links_.begin(collective, signature, *executor_);
  phase_ = Phase::starting;
}

Exchange::Progress Exchange::advance() {
  if (phase_ == Phase::starting) {
    mesh_.wait({}, deadline_);  // notices what happened meanwhile
    phase_ = Phase::moving;
  }
  if (executor_->is_done() && links_.is_done()) {
    phase_ = Phase::idle;
    return Progress::done;
  }
  bool has_moved = false;
  for (const int peer : links_.peers()) {
    has_moved |= links_.send(peer);
    has_moved |= links_.receive(peer);
  }
  links_.take_announcements();
  if (links_.differ()) throw Error(ErrorKind::desync, "ranks are in different collectives");
  const bool have_all_come = links_.has_compared();
  // In a tree the neighbours have, and may wait for others.
  const bool begins_to_move = have_all_come && route_ != Route::tree && meter_ != nullptr && meter_->is_waiting();
  if (begins_to_move) meter_->moves(tsc_clock().now());
  has_moved |= executor_->advance(have_all_come);
  return has_moved || monitor_.look(deadline_) ? Progress::moved : Progress::idle;
}

void Exchange::wait() {
  links_.list_interests(interests_);
  try {
    mesh_.wait(interests_, std::min(deadline_, monitor_.next_look()));
  } catch (const Error& error) {
    const bool is_own = error.kind() == ErrorKind::timeout && error.detail().peer < 0;
    if (!is_own || deadline_.expired()) throw;
  }
}

Error Exchange::settle(const Error& error) {
  if (error.kind() != ErrorKind::desync && error.kind() != ErrorKind::peer_lost) return error;
  if (error.kind() == ErrorKind::peer_lost) look_for_difference();
  if (!links_.differ()) return error;  // or it is known from a rank that has ended the group
  const Error desync = settle_desync(links_, mesh_, deadline_);
  // A death is what other ranks may have reacted to by different calls.
  if (error.kind() != ErrorKind::peer_lost || is_plain_departure(error)) return desync;
  return Error(desync.kind(), fmt::format("{}; {}", desync.what(), error.what()), desync.detail());
}

// A rank that has seen one may have left because of it.
void Exchange::look_for_difference() {
  for (const int peer : links_.peers()) {
    try {
      while (links_.stream(peer).presence == PeerStream::Presence::unknown && links_.receive(peer)) continue;
    } catch (const Error&) {  // what ended the collective is known
    }
  }
  try {
    links_.take_announcements();
  } catch (const Error&) {
  }
}

}  // namespace lockstep::internal
