#include "lockstep/comm/collective/exchange.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/realign.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

// How long a rank that has seen a desync tries to tell the others.
constexpr Duration kFarewell = std::chrono::seconds(1);
// How long a rank that lost a peer waits for signatures that may explain it.
constexpr Duration kGrace = std::chrono::milliseconds(100);

}  // namespace

Exchange::Exchange(Mesh& mesh, Topology topology, const LinkTuning& tuning)
    : mesh_(mesh),
      topology_(std::move(topology)),
      tuning_(tuning),
      links_(mesh, has_trees(topology_, tuning_)),
      pipeline_(mesh.rank(), links_.streams(), topology_, tuning_),
      tree_(mesh.rank(), links_.streams(), topology_),
      monitor_(links_, tuning_) {
  interests_.reserve(links_.streams().size());
}

void Exchange::run(const Collective& collective, const Signature& signature, Deadline deadline) {
  begin(collective, signature, deadline);
  try {
    for (Progress progress = advance(); progress != Progress::done; progress = advance()) {
      if (progress == Progress::idle) wait(Deadline::never());
    }
  } catch (const Error& error) {
    throw settle(error);
  }
}

void Exchange::begin(const Collective& collective, const Signature& signature, Deadline deadline) {
  deadline_ = deadline;
  is_aligned_ = false;
  route_ = route_of(collective, topology_, tuning_);
  executor_ = route_ == Route::tree ? static_cast<Executor*>(&tree_) : &pipeline_;
  monitor_.begin(route_);
  links_.begin(collective, signature, *executor_);
  phase_ = Phase::starting;
}

Exchange::Progress Exchange::advance() {
  if (phase_ == Phase::starting) {
    mesh_.wait({}, deadline_);  // notices what happened meanwhile
    links_.take_early_signatures();
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
  const bool have_all_come = links_.has_compared();
  // In a tree the neighbours have, and may wait for others.
  const bool begins_to_move = have_all_come && route_ != Route::tree && meter_ != nullptr && meter_->is_waiting();
  if (begins_to_move) meter_->moves(tsc_clock().now());
  has_moved |= executor_->advance(have_all_come);
  return has_moved || monitor_.look(deadline_) ? Progress::moved : Progress::idle;
}

void Exchange::wait(Deadline limit) {
  links_.list_interests(interests_);
  try {
    mesh_.wait(interests_, std::min({limit, deadline_, monitor_.next_look()}));
  } catch (const Error& error) {
    const bool is_own = error.kind() == ErrorKind::timeout && error.detail().peer < 0;
    if (!is_own || deadline_.expired()) throw;
  }
}

Error Exchange::settle(const Error& error) {
  if (error.kind() == ErrorKind::desync) return settle_difference(error);
  if (error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted) {
    // A rank that saw a desync before this one may have left, or ended the group, because of it.
    const auto desync = settle_signatures(links_, mesh_, Deadline::after(kGrace), Reading::yes);
    // It may be what ranks do that have heard of a death.
    const bool is_death = error.kind() == ErrorKind::peer_lost && !is_plain_departure(error);
    if (desync && is_death) {
      return Error(ErrorKind::desync, fmt::format("{}; {}", desync->what(), error.what()), desync->detail());
    }
    if (desync) return *desync;
  }
  return error;
}

Error Exchange::settle_difference(const Error& seen) {
  if (after_mismatch_ == AfterMismatch::stay_failed) {
    settle_signatures(links_, mesh_, std::min(deadline_, Deadline::after(kFarewell)), Reading::no);
    return seen;
  }
  try {
    Realigned realigned = realign(links_, mesh_, route_, deadline_);
    is_aligned_ = realigned.is_aligned;
    return std::move(realigned.error);
  } catch (const Error& error) {  // some rank does not come, or has gone
    const Error last(ErrorKind::desync, fmt::format("{}; the group cannot continue: {}", seen.what(), error.what()),
                     seen.detail());
    mesh_.abort(last);
    return last;
  }
}

}  // namespace lockstep::internal
