#include "lockstep/comm/health/join_watch.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/health/posted_errors.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

constexpr const char* kFailureKey = "failure";
// The more ranks there are, the more rarely each asks the store, which serves them all.
constexpr Duration kPeriod = 100ms;
constexpr Duration kPeriodPerRank = 500us;
// For posting an error, which must not delay a rank that leaves.
constexpr Duration kPostTimeout = 1s;

}  // namespace

JoinWatch::JoinWatch(std::shared_ptr<Store> store, PeerProcess me, int size, std::string doing)
    : store_(std::move(store)),
      me_(std::move(me)),
      doing_(std::move(doing)),
      period_(std::max<Duration>(kPeriod, size * kPeriodPerRank)) {}

void JoinWatch::begin(Deadline deadline) {
  const PeerFailure will{.peer = me_.rank,
                         .name = me_.name,
                         .how = Departure::died,
                         .when = fmt::format("while {}, or lost its connection to the store", doing_)};
  store_->last_will(kFailureKey, encode_error(peer_lost(will, me_.rank)), deadline);
}

void JoinWatch::add(const PeerProcess& peer) {
  if (peer.rank == me_.rank || peer.node_id != me_.node_id || peer.start == 0) return;
  const std::lock_guard lock(mutex_);
  if (std::ranges::any_of(watched_, [&](const Watched& each) { return each.peer.rank == peer.rank; })) return;
  watched_.push_back({peer, ProcessWatch(peer.pid, peer.start)});
}

void JoinWatch::check(Deadline deadline) {
  if (is_over()) return;
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = steady_clock().now();
    if (looked_ != TimePoint::min() && now - looked_ < period_) return;
    looked_ = now;
  }
  look(deadline);
}

void JoinWatch::look(Deadline deadline) {
  if (is_over()) return;
  std::vector<PeerProcess> dead;
  {
    const std::lock_guard lock(mutex_);
    for (const Watched& each : watched_) {
      if (each.process.has_ended()) dead.push_back(each.peer);
    }
  }
  if (!dead.empty()) report(dead, deadline);
  std::optional<Error> posted;
  try {
    posted = failure(deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;  // a store that is slow to answer knows of no death
  }
  if (posted) throw Error(*posted);
}

// A rank that has ended may have posted why, or because of whom. If none has, all that have ended are named: one of
// them may have left because another had died.
void JoinWatch::report(const std::vector<PeerProcess>& dead, Deadline deadline) {
  const Deadline soon = std::min(deadline, Deadline::after(kPostTimeout));
  Error error = died(dead);
  try {
    std::optional<Error> posted = failure(soon);
    if (!posted) {
      give_up(Error(error.kind(), error.what(), {.peer = dead.front().rank}));
      posted = failure(soon);
    }
    if (posted) error = *posted;
  } catch (const Error& gone) {
    // If the store's host has died, the others have left because of that.
    const auto host = std::ranges::find(dead, gone.detail().peer, &PeerProcess::rank);
    error = host == dead.end() ? beside(gone, error) : died({*host});
  }
  throw error;
}

Error JoinWatch::died(const std::vector<PeerProcess>& dead) const {
  PeerFailure failure{.peer = rank_in_part(dead.front().rank), .name = {}, .when = "while " + doing_};
  for (const PeerProcess& each : dead) failure.name += (failure.name.empty() ? "" : " and ") + each.name;
  return peer_lost(failure, rank_in_part(me_.rank));
}

std::optional<Error> JoinWatch::failure(Deadline deadline) {
  deadline = std::max(deadline, Deadline::after(kLastLook));
  if (!store_->check({kFailureKey}, deadline)) return std::nullopt;
  return read(store_->get(kFailureKey, deadline));
}

void JoinWatch::give_up(const Error& error) noexcept {
  if (is_over()) return;
  try {
    post(encode_error(error));
  } catch (const std::exception&) {  // the store is gone, and with it those who could read this
  }
}

// Returns the first error posted.
Bytes JoinWatch::post(const Bytes& error) {
  return store_->compare_set(kFailureKey, "", error, Deadline::after(kPostTimeout));
}

Error JoinWatch::cause_of(const Error& error) {
  if (is_over()) return error;
  try {
    const Error told = error_for_peers(me_.name, rank_in_part(me_.rank), error);
    const Bytes mine =
        encode_error(Error(told.kind(), told.what(), {.rank = me_.rank, .peer = rank_of(told.detail().peer)}));
    const Bytes first = post(mine);
    if (first == mine) return error;
    Error posted = read(first);
    const bool is_consequence = error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted;
    if (is_consequence || (error.kind() == ErrorKind::timeout && posted.kind() == ErrorKind::peer_lost)) return posted;
  } catch (const Error& gone) {
    if (error.kind() == ErrorKind::peer_lost) return beside(gone, error);
  } catch (const std::exception&) {  // no memory for the text
  }
  return error;
}

void JoinWatch::set_ranks(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = std::move(ranks);
}

int JoinWatch::rank_in_part(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(ranks_, rank);
  return ranks_.empty() ? rank : found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

int JoinWatch::rank_of(int peer) const {
  const std::lock_guard lock(mutex_);
  return peer >= 0 && std::cmp_less(peer, ranks_.size()) ? ranks_[static_cast<std::size_t>(peer)] : peer;
}

// What to throw where `error` has come and the store answers with `gone`. If its host is gone, and with it what it
// knew, it may have left because of what this rank has seen, or the other way round: both are told.
Error JoinWatch::beside(const Error& gone, const Error& error) const {
  if (gone.kind() != ErrorKind::peer_lost || gone.detail().peer < 0) return error;
  const Error host = in_part(gone);
  return Error(host.kind(), fmt::format("{}; {}", host.what(), error.what()), host.detail());
}

Error JoinWatch::in_part(const Error& error) const {
  return Error(error.kind(), error.what(), {.rank = rank_in_part(me_.rank), .peer = rank_in_part(error.detail().peer)});
}

Error JoinWatch::read(const Bytes& posted) const {
  return in_part(decode_error(posted, "the posted error that ended the joining", me_.rank));
}

void JoinWatch::end(Deadline deadline) noexcept {
  if (is_over_.exchange(true)) return;
  {
    const std::lock_guard lock(mutex_);
    watched_.clear();  // each has a descriptor
  }
  try {
    store_->last_will(kFailureKey, "", deadline);
  } catch (const std::exception&) {  // the store is gone, and the will with it
  }
}

}  // namespace lockstep::internal
