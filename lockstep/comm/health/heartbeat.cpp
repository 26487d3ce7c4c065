#include "lockstep/comm/health/heartbeat.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"

namespace lockstep::internal {
namespace {

// A healthy rank answers sooner, unless its machine has much else to do.
constexpr Duration kPatience = std::chrono::milliseconds(200);
constexpr Duration kLongestAge = std::chrono::hours(24 * 365 * 100);

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

bool Heartbeat::ask(int rank, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.asked) return false;
  peer.asked = now;
  return true;
}

Bytes Heartbeat::answer(TimePoint now) const {
  Answer answer;
  if (const auto last = log_.last_collective()) {
    answer.last = *last;
    if (last->name != 0) noted_name(last->name).copy(answer.name, sizeof answer.name - 1);
    answer.began_ago_ns = now.time_since_epoch().count() - last->started_ns;
    if (last->finished_ns != 0) answer.ended_ago_ns = now.time_since_epoch().count() - last->finished_ns;
  }
  return {reinterpret_cast<const char*>(&answer), sizeof answer};
}

bool Heartbeat::take_answer(int rank, ByteView bytes, TimePoint now) {
  Answer answer;
  if (bytes.size() != sizeof answer) return false;
  std::memcpy(static_cast<void*>(&answer), bytes.data(), sizeof answer);
  const auto is_age = [](std::int64_t ns) { return ns >= -1 && ns <= kLongestAge.count(); };
  if (!is_age(answer.began_ago_ns) || !is_age(answer.ended_ago_ns)) return false;
  if (answer.began_ago_ns >= 0 && !is_sound(answer.last)) return false;
  const auto end = std::ranges::find(answer.name, '\0');
  if (end == std::end(answer.name) || !std::all_of(std::begin(answer.name), end, is_printable)) return false;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.asked.reset();
  peer.answer = answer;
  peer.answered = now;
  return true;
}

void Heartbeat::depart(int rank, Departure how, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.departure = how;
  peer.departed = now;
}

PeerHealth Heartbeat::health(int rank, TimePoint now) const {
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const Duration age = peer.answer ? now - peer.answered : Duration::zero();
  const Duration silent = peer.asked ? now - *peer.asked : Duration::zero();
  PeerHealth health;
  health.departure = peer.departure;
  health.departed = peer.departed;
  if (peer.answer && peer.answer->began_ago_ns >= 0 && peer.answer->ended_ago_ns < 0) {
    health.inside = peer.answer->last.sequence;
  }
  if (peer.answer) health.place = place(*peer.answer, silent >= kPatience ? Duration::zero() : age);
  if (silent >= kPatience) {
    health.silent = silent;
    if (peer.answer) health.place += fmt::format(", according to its answer {:.1f} s ago", seconds(age));
    health.state =
        fmt::format("silent for {:.1f} s: it is stopped, or its host is down or overloaded", seconds(silent));
  } else if (peer.answer) {
    health.state = "alive";
  }
  return health;
}

std::string Heartbeat::place(const Answer& answer, Duration age) {
  if (answer.began_ago_ns < 0) return "seen in no collective yet";
  FlightRecord nameless = answer.last;
  nameless.name = 0;
  std::string what = describe(nameless);
  if (answer.name[0] != '\0') what.append(", ").append(answer.name);
  if (answer.ended_ago_ns < 0) {
    return fmt::format("inside {} for {:.1f} s", what, seconds(Duration(answer.began_ago_ns) + age));
  }
  return fmt::format("last seen in {}, left it {:.1f} s ago", what, seconds(Duration(answer.ended_ago_ns) + age));
}

}  // namespace lockstep::internal
