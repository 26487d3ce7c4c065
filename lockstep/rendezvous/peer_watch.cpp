#include "lockstep/rendezvous/peer_watch.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/base/last_word.h"
#include "lockstep/rendezvous/registration_record.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr const char* kFailureKey = "failure";
// The more ranks there are the more rarely each asks the store, which serves them all.
constexpr Duration kPeriod = 100ms;
constexpr Duration kPeriodPerRank = 500us;
// For a last word, which must not hold up who leaves.
constexpr Duration kWordTimeout = 1s;

// A rank that hosted the store has died, or left.
bool is_host_gone(const Error& error) { return error.kind() == ErrorKind::peer_lost && error.detail().peer >= 0; }

}  // namespace

PeerWatch::PeerWatch(std::shared_ptr<Store> store, Member me, int size, std::string doing)
    : store_(std::move(store)),
      me_(std::move(me)),
      doing_(std::move(doing)),
      period_(std::max<Duration>(kPeriod, size * kPeriodPerRank)) {}

void PeerWatch::begin(Deadline deadline) {
  const std::string text =
      fmt::format("{} has died while {}, or lost its connection to the store", to_string(me_), doing_);
  store_->last_will(kFailureKey, encode_failure(ErrorKind::peer_lost, text, me_.rank), deadline);
}

void PeerWatch::add(const Member& member) {
  if (member.rank == me_.rank || member.node_id != me_.node_id || member.process_start == 0) return;
  const std::lock_guard lock(mutex_);
  if (std::ranges::any_of(watched_, [&](const Watched& each) { return each.member.rank == member.rank; })) return;
  watched_.push_back({member, ProcessWatch(member.pid, member.process_start)});
}

void PeerWatch::check(Deadline deadline) {
  if (is_over()) return;
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = steady_clock().now();
    if (looked_ != TimePoint::min() && now - looked_ < period_) return;
    looked_ = now;
  }
  look(deadline);
}

void PeerWatch::look(Deadline deadline) {
  if (is_over()) return;
  std::vector<Member> dead;
  {
    const std::lock_guard lock(mutex_);
    for (const Watched& each : watched_) {
      if (each.process.has_ended()) dead.push_back(each.member);
    }
  }
  if (!dead.empty()) report(dead, deadline);
  if (const std::optional<Error> word = failure(deadline)) throw Error(*word);
}

// Whoever has died may have said why, or because of whom. Where nobody has, all that have ended are named: one of them
// may have left because another had died.
void PeerWatch::report(const std::vector<Member>& dead, Deadline deadline) {
  const Deadline soon = std::min(deadline, Deadline::after(kWordTimeout));
  Error error = died(dead);
  try {
    std::optional<Error> word = failure(soon);
    if (!word) {
      give_up(error.kind(), error.what(), dead.front().rank);
      word = failure(soon);
    }
    if (word) error = *word;
  } catch (const Error& gone) {
    // If the store's host has died, the others have left because of that.
    const auto found = std::ranges::find(dead, gone.detail().peer, &Member::rank);
    if (is_host_gone(gone)) error = found == dead.end() ? known(gone) : died({*found});
  }
  throw error;
}

Error PeerWatch::died(const std::vector<Member>& members) const {
  std::string who;
  for (const Member& each : members) who += (who.empty() ? "" : " and ") + to_string(each);
  return Error(ErrorKind::peer_lost,
               fmt::format("{} {} died while {}", who, members.size() == 1 ? "has" : "have", doing_),
               {.rank = known_as(me_.rank), .peer = known_as(members.front().rank)});
}

std::optional<Error> PeerWatch::failure(Deadline deadline) {
  deadline = std::max(deadline, Deadline::after(kLastLook));
  if (!store_->check({kFailureKey}, deadline)) return std::nullopt;
  return heard(store_->get(kFailureKey, deadline));
}

void PeerWatch::give_up(ErrorKind kind, const std::string& text, int about) noexcept {
  if (is_over()) return;
  try {
    say(encode_failure(kind, text, about));
  } catch (const std::exception&) {  // the store is gone, and with it those who could read this
  }
}

// The first word.
Bytes PeerWatch::say(const Bytes& word) {
  return store_->compare_set(kFailureKey, "", word, Deadline::after(kWordTimeout));
}

Error PeerWatch::cause_of(const Error& error) {
  if (is_over()) return error;
  try {
    const Error last = last_word(to_string(me_), known_as(me_.rank), error);
    const Bytes mine = encode_failure(last.kind(), last.what(), rank_of(last.detail().peer));
    const Bytes first = say(mine);
    if (first == mine) return error;
    Error word = heard(first);
    const bool is_consequence = error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted;
    if (is_consequence || (error.kind() == ErrorKind::timeout && word.kind() == ErrorKind::peer_lost)) return word;
  } catch (const Error& gone) {
    // Without the store's host nobody could say why he left.
    const bool is_known = error.kind() == ErrorKind::peer_lost && is_host_gone(gone);
    if (is_known) return known(gone);
  } catch (const std::exception&) {  // no memory for the text
  }
  return error;
}

void PeerWatch::set_ranks(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = std::move(ranks);
}

int PeerWatch::known_as(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(ranks_, rank);
  return ranks_.empty() ? rank : found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

int PeerWatch::rank_of(int peer) const {
  const std::lock_guard lock(mutex_);
  return peer >= 0 && std::cmp_less(peer, ranks_.size()) ? ranks_[static_cast<std::size_t>(peer)] : peer;
}

Error PeerWatch::known(const Error& error) const {
  return Error(error.kind(), error.what(), {.rank = known_as(me_.rank), .peer = known_as(error.detail().peer)});
}

Error PeerWatch::heard(const Bytes& word) const { return known(decode_failure(word, me_.rank)); }

void PeerWatch::end(Deadline deadline) noexcept {
  if (is_over_.exchange(true)) return;
  try {
    store_->last_will(kFailureKey, "", deadline);
  } catch (const std::exception&) {  // the store is gone, and the will with it
  }
}

}  // namespace lockstep
