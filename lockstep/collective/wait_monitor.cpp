// How an Exchange waits, and what it makes of ranks that do not come or disagree.
#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/exchange.h"
#include "lockstep/health/peer_failure.h"

namespace lockstep {
namespace {

// A peer that is not there after kFirstLook is asked how it fares, and again every kLookPeriod.
constexpr Duration kFirstLook = std::chrono::milliseconds(100);
constexpr Duration kLookPeriod = std::chrono::milliseconds(250);

}  // namespace

void Exchange::wait(Deadline deadline) {
  // A peer that sends a byte now and then never lets the mesh's own wait time out.
  const TimePoint now = steady_clock().now();
  if (deadline.expired(now)) throw Error(ErrorKind::timeout, "the deadline has passed");
  const bool looks = detector_ != nullptr || plan_.in_tree;
  if (looks && next_look_ == TimePoint{}) {
    waits_since_ = now;
    next_look_ = first_look(now, deadline);
    reports_ = WaitReports(first_report_);
  }
  if (looks && now >= next_look_) return look(now);
  interests_.clear();
  for (const int peer : peers_) {
    const Mesh::Interest interest{peer, !next_to_receive(link(peer)).empty(), !next_to_send(link(peer)).empty()};
    if (interest.readable || interest.writable) interests_.push_back(interest);
  }
  if (!looks) return mesh_.wait(interests_, deadline);
  try {
    mesh_.wait(interests_, std::min(deadline, Deadline::at(next_look_)));
  } catch (const Error& error) {
    const bool is_own = error.kind() == ErrorKind::timeout && error.detail().peer < 0;
    if (!is_own || deadline.expired()) throw;
  }
}

// In a tree all must have been told, and have told, before the deadline.
TimePoint Exchange::first_look(TimePoint now, Deadline deadline) const {
  if (!plan_.in_tree) return now + kFirstLook;
  return now + std::min<Duration>(tuning_.tell_all_after, deadline.remaining(now) / 2);
}

void Exchange::look(TimePoint now) {
  next_look_ = now + kLookPeriod;
  if (plan_.in_tree && !has_told_all_) tell_all();
  if (detector_ == nullptr) return;
  if (reports_.is_due(now - waits_since_)) {
    log_warning(fmt::format("{} has waited {:.0f} s for: {}", describe(signature_), seconds(now - waits_since_),
                            missing().text));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (!may_hold_up(peer)) continue;
    const PeerHealth health = detector_->health(peer);
    detector_->ask(peer);
    if (has_warned_ || health.silent < kHeartbeatTimeout) continue;
    has_warned_ = true;
    log_warning(fmt::format("{} waits: {}", describe(signature_),
                            describe_missing(mesh_.peer_name(peer), hold_up(peer), health)));
  }
}

void Exchange::tell_all() {
  has_told_all_ = true;
  peers_.clear();
  for (int step = 1; step < size_; ++step) peers_.push_back(peer_at(step));
}

// In a tree any rank may hold up those that this one waits for.
bool Exchange::may_hold_up(int peer) const {
  if (peer == rank_ || link(peer).presence == Presence::gone) return false;
  return plan_.in_tree || holds_up(peer);
}

bool Exchange::holds_up(int peer) const {
  const Link& each = link(peer);
  // In a tree what is still to be sent may not be there yet.
  return !received(each) || (plan_.in_tree ? !next_to_send(each).empty() : !sent(each));
}

std::optional<Error> Exchange::settle_signatures(Deadline deadline, Looking looking) {
  tell_all();
  std::optional<Error> desync;
  std::vector<bool> deaf(links_.size()), mute(links_.size(), looking == Looking::no);
  for (;;) {
    interests_.clear();
    for (int step = 1; step < size_; ++step) {
      const int peer = peer_at(step);
      const auto p = static_cast<std::size_t>(peer);
      try {
        if (!deaf[p] && !is_told(peer)) send(peer);
        deaf[p] = deaf[p] || is_told(peer);
      } catch (const Error&) {
        deaf[p] = true;
      }
      try {
        if (!mute[p] && !is_heard(peer)) receive(peer);
        mute[p] = mute[p] || is_heard(peer);
      } catch (const Error& error) {
        mute[p] = true;
        if (error.kind() == ErrorKind::desync && !desync) desync = error;
      }
      if (!deaf[p] || !mute[p]) interests_.push_back({peer, !mute[p], !deaf[p]});
    }
    if (interests_.empty() || deadline.expired()) return desync;
    try {
      mesh_.wait(interests_, deadline);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer_lost) return desync;
    }
  }
}

// A signature that cannot be compared, as it differs or is of a later collective, has been read all the same.
bool Exchange::is_heard(int peer) const {
  return link(peer).presence != Presence::unknown || link(peer).signature_received == sizeof(Signature);
}

bool Exchange::is_told(int peer) const {
  const Link& each = link(peer);
  return each.header_sent >= sizeof(Signature) || each.announced == sizeof(Signature);
}

std::string Exchange::hold_up(int peer) const {
  const Link& each = link(peer);
  if (each.presence == Presence::unknown) return "has not come to it";
  if (!holds_up(peer)) return "has come to it";
  if (received(each)) return "does not take the data sent to it";
  return fmt::format("has sent {} of {} bytes", each.row_received + each.output_received,
                     each.row_bytes + each.output_bytes);
}

Exchange::Missing Exchange::missing() const {
  struct Culprit {
    int blame = 0;
    int rank = -1;
    std::string text;
  };
  std::vector<Culprit> culprits;
  int most = 0;
  for (int peer = 0; peer < size_; ++peer) {
    const Link& each = link(peer);
    if (!may_hold_up(peer)) continue;
    PeerHealth health = detector_ == nullptr ? PeerHealth() : detector_->health(peer);
    const bool is_absent = each.presence == Presence::unknown;
    const bool is_silent = health.silent != Duration::zero();
    if (!is_absent && !is_silent && !holds_up(peer)) continue;
    const int blame = is_silent ? 2 : is_absent ? 1 : 0;
    most = std::max(most, blame);
    // Who has not come to this one has at least sent all it had to send in the one before; an old answer tells less.
    if (is_absent && previous_.sequence != 0 && (is_silent || health.place.empty())) {
      health.place = "last seen in " + describe(previous_);
    }
    culprits.push_back({blame, peer, describe_missing(mesh_.peer_name(peer), hold_up(peer), health)});
  }
  std::ranges::stable_sort(culprits, std::greater{}, &Culprit::blame);
  // Those who came may well be waiting for those who did not.
  if (most > 0) std::erase_if(culprits, [](const Culprit& each) { return each.blame == 0; });
  Missing missing;
  for (const Culprit& each : culprits) missing.text += (missing.text.empty() ? "" : "; ") + each.text;
  if (!culprits.empty()) missing.first = culprits.front().rank;
  return missing;
}

}  // namespace lockstep
