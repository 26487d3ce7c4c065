#include "lockstep/comm/transport/arena_wait.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/transport/arena.h"
#include "lockstep/comm/transport/cpu_placement.h"
#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

// Yielding longer would waste cores on which others compute. Dead peers ring no bell: a sleeper looks for them.
constexpr Duration kYieldFor = 500us;
constexpr Duration kPeerLook = 20ms;
// How many waits for a rank on this core it takes to look for another core; looking costs about as much as they do.
constexpr int kSharedWaits = 16;
// With more ranks than this nobody looks; cores beyond are not gone to.
constexpr std::size_t kMostCores = CPU_SETSIZE;
// Stopped peers are looked for this often, once the wait is so long that somebody may wonder.
constexpr Duration kStoppedPeriod = 250ms;
constexpr Duration kStoppedAfter = 2500ms;

}  // namespace

class ArenaWait::Wait final : public Waiter {
 public:
  Wait(const Arena& arena, LocalPeers& peers, const What& what, Duration first_report)
      : Waiter({.yield_for = kYieldFor, .look_period = kPeerLook}),
        arena_(arena),
        peers_(peers),
        what_(what),
        reports_(first_report) {}

  bool is_ready() override {
    if (what_.ready()) return true;
    arena_.check_abort();
    return false;
  }

  bool is_ready_after_yield() override {
    return what_.ready() || arena_.spin(what_.ready, what_.waiting_for) || is_ready();
  }

  void look(Duration waited) override {
    waited_ = waited;
    if (waited >= next_stopped_) next_stopped_ = warn_of_stopped() ? Duration::max() : waited + kStoppedPeriod;
    if (reports_.is_due(waited)) log_warning(what_.explain(failure(WaitFailure::Cause::none)).what());
    peers_.look();
    for (int peer = 0; peer < arena_.size(); ++peer) {
      if (peer == arena_.rank()) continue;
      const bool left = arena_.control(peer).state.load(std::memory_order_acquire) == arena::RankState::left;
      // A peer may write its word and end between the look at the word and the look at its state.
      if ((!left && !peers_.has_ended(peer)) || !what_.waiting_for(peer)) continue;
      stop(WaitFailure{.cause = left ? WaitFailure::Cause::left : WaitFailure::Cause::died,
                       .peer = peer,
                       .elapsed_seconds = seconds(waited)});
    }
  }

  void sleep(Duration most) override {
    const auto over = [&] { return what_.ready() || arena_.rings().control().is_aborted(); };
    sleep_at(arena_.rings().control().bells(arena_.rank()).collectives, over, most);
  }

  void stop_at_deadline() const { stop(failure(WaitFailure::Cause::deadline)); }

 private:
  [[noreturn]] void stop(const WaitFailure& failure) const {
    const Error error = what_.explain(failure);
    arena_.abort(error);
    arena_.check_abort();
    throw Error(error);
  }

  WaitFailure failure(WaitFailure::Cause cause) const {
    WaitFailure failure{.cause = cause, .elapsed_seconds = seconds(waited_)};
    for (int peer = 0; peer < arena_.size(); ++peer) {
      if (peer != arena_.rank() && what_.waiting_for(peer)) failure.missing.push_back(peer);
    }
    return failure;
  }

  // Whether it has warned of a peer that is stopped.
  bool warn_of_stopped() const {
    std::string stopped;
    for (int peer = 0; peer < arena_.size(); ++peer) {
      if (peer == arena_.rank() || !what_.waiting_for(peer)) continue;
      const ProcessState state = peers_.state(peer);
      if (!is_stopped(state)) continue;
      stopped += fmt::format("{}{} is {}", stopped.empty() ? "" : "; ", peers_.name(peer), to_string(state));
    }
    if (stopped.empty()) return false;
    log_warning(fmt::format("a collective has waited {:.1f} s: {}", seconds(waited_), stopped));
    return true;
  }

  const Arena& arena_;
  LocalPeers& peers_;
  const What& what_;
  WaitReports reports_;
  Duration waited_{};
  Duration next_stopped_ = kStoppedAfter;
};

ArenaWait::ArenaWait(const Arena& arena) : arena_(arena), peers_(arena.peers()) {}

int ArenaWait::find_dead() {
  peers_.look();
  for (int peer = 0; peer < arena_.size(); ++peer) {
    if (peer == arena_.rank() || !peers_.has_ended(peer)) continue;
    if (arena_.control(peer).state.load(std::memory_order_acquire) != arena::RankState::left) return peer;
  }
  return -1;
}

void ArenaWait::run(const What& what, Deadline deadline) {
  leave_shared_core(what);
  Wait wait(arena_, peers_, what, first_report_);
  if (!wait.wait(deadline)) wait.stop_at_deadline();
}

void ArenaWait::leave_shared_core(const What& what) {
  const auto core_of = [this](int rank) { return arena_.control(rank).core.load(std::memory_order_relaxed); };
  const int rank = arena_.rank();
  bool shared = false;
  for (int peer = 0; peer < rank; ++peer) {
    shared = shared || (core_of(peer) == core_of(rank) && what.waiting_for(peer));
  }
  if (!shared || ++shared_waits_ < kSharedWaits) return;
  shared_waits_ = 0;
  std::array<std::uint32_t, kMostCores> cores{};  // by rank
  std::array<int, kMostCores> memory;
  const auto ranks = static_cast<std::size_t>(arena_.size());
  if (ranks > cores.size()) return;
  for (std::size_t each = 0; each < ranks; ++each) cores[each] = core_of(static_cast<int>(each));
  const int core = emptier_core(std::span(cores).first(ranks), rank, allowed_cores(memory));
  if (core >= 0) move_to_core(core);
}

}  // namespace lockstep::internal
