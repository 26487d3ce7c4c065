#include "lockstep/comm/collective/wait_monitor.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

// A peer that has not come after kFirstLook is asked how it fares, and again every kLookPeriod.
constexpr Duration kFirstLook = std::chrono::milliseconds(100);
constexpr Duration kLookPeriod = std::chrono::milliseconds(250);
// At most this many missing ranks are asked over new connections, once announcements have had time to arrive.
constexpr int kMostNewConnections = 4;
constexpr Duration kAnnouncementsTake = std::chrono::milliseconds(500);

}  // namespace

struct WaitMonitor::Straggler {
  int rank = -1;
  // The higher, the more likely it is why all wait: it holds this rank up, has not come, is silent. -1: it does not.
  int blame = -1;
  std::string text = {};
};

void WaitMonitor::begin(Route route) {
  route_ = route;
  next_look_ = {};
  has_warned_ = false;
}

bool WaitMonitor::look(Deadline deadline) {
  // A peer that sends a byte now and then never lets the mesh's own wait time out.
  const TimePoint now = steady_clock().now();
  if (deadline.expired(now)) throw Error(ErrorKind::timeout, "the deadline has passed");
  if (!is_needed()) return false;
  if (next_look_ == TimePoint{}) {
    waits_since_ = now;
    next_look_ = first_look(now, deadline);
    reports_ = WaitReports(first_report_);
  }
  if (now < next_look_) return false;
  next_look_ = now + kLookPeriod;
  if (route_ == Route::tree && !links_.has_announced()) links_.announce();
  if (detector_ == nullptr) return true;
  if (reports_.is_due(now - waits_since_)) {
    log_warning(fmt::format("{} has waited {:.0f} s for: {}", describe(links_.signature()), seconds(now - waits_since_),
                            missing().text));
  }
  ask_around();
  return true;
}

TimePoint WaitMonitor::first_look(TimePoint now, Deadline deadline) const {
  if (route_ != Route::tree) return now + kFirstLook;
  return now + std::min<Duration>(tuning_.announce_after, deadline.remaining(now) / 2);
}

void WaitMonitor::ask_around() {
  const bool may_connect = steady_clock().now() - waits_since_ >= kAnnouncementsTake;
  int unconnected = 0;
  for (int peer = 0; peer < links_.size(); ++peer) {
    if (!may_hold_up(peer)) continue;
    if (!links_.is_connected(peer)) {
      const bool is_absent = links_.stream(peer).presence == PeerStream::Presence::unknown;
      if (!may_connect || !is_absent || ++unconnected > kMostNewConnections) continue;
    }
    const PeerHealth health = detector_->health(peer);
    detector_->ask(peer);
    if (has_warned_ || health.silent < kHeartbeatTimeout) continue;
    has_warned_ = true;
    log_warning(fmt::format("{} waits: {}", describe(links_.signature()),
                            describe_missing(links_.peer_name(peer), wait_reason(peer), health)));
  }
}

Deadline WaitMonitor::next_look() const { return is_needed() ? Deadline::at(next_look_) : Deadline::never(); }

// In a tree any rank may hold up those that this one waits for.
bool WaitMonitor::may_hold_up(int peer) const {
  if (peer == links_.rank()) return false;
  return route_ == Route::tree || holds_up(peer);
}

bool WaitMonitor::holds_up(int peer) const {
  const PeerStream& each = links_.stream(peer);
  // In a tree what is still to be sent may not be there yet.
  return !each.is_received() || (route_ == Route::tree ? links_.can_send(peer) : !each.is_sent());
}

std::string WaitMonitor::wait_reason(int peer) const {
  const PeerStream& each = links_.stream(peer);
  if (each.presence == PeerStream::Presence::unknown) return "has not entered it";
  if (!holds_up(peer)) return "has entered it";
  if (each.is_received()) return "does not receive the data sent to it";
  return fmt::format("has sent {} of {} bytes", each.row_received + each.receive.moved(),
                     each.row_bytes + each.receive.bytes());
}

WaitMonitor::Straggler WaitMonitor::straggler(int peer) const {
  if (!may_hold_up(peer)) return {};
  PeerHealth health = detector_ == nullptr ? PeerHealth() : detector_->health(peer);
  // A rank may leave as soon as it is done; if it is not, the mesh says so.
  if (route_ == Route::tree && health.departure != Departure::none) return {};
  const bool is_absent = links_.stream(peer).presence == PeerStream::Presence::unknown;
  const bool is_silent = health.silent != Duration::zero();
  if (!is_absent && !is_silent && !holds_up(peer)) return {};
  // A peer that has not come to this one has at least sent all it had to send in the one before; an old answer tells
  // less.
  if (is_absent && links_.previous().sequence != 0 && (is_silent || health.place.empty())) {
    health.place = "last seen in " + describe(links_.previous());
  }
  return {.rank = peer,
          .blame = is_silent   ? 2
                   : is_absent ? 1
                               : 0,
          .text = describe_missing(links_.peer_name(peer), wait_reason(peer), health)};
}

WaitMonitor::Missing WaitMonitor::missing() const {
  std::vector<Straggler> stragglers;
  int most = 0;
  for (int peer = 0; peer < links_.size(); ++peer) {
    Straggler each = straggler(peer);
    if (each.blame < 0) continue;
    most = std::max(most, each.blame);
    stragglers.push_back(std::move(each));
  }
  std::ranges::stable_sort(stragglers, std::greater{}, &Straggler::blame);
  // Those who came may well be waiting for those who did not.
  if (most > 0) std::erase_if(stragglers, [](const Straggler& each) { return each.blame == 0; });
  Missing missing;
  for (const Straggler& each : stragglers) missing.text += (missing.text.empty() ? "" : "; ") + each.text;
  if (!stragglers.empty()) missing.first = stragglers.front().rank;
  return missing;
}

}  // namespace lockstep::internal
