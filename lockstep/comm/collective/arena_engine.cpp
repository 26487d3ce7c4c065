#include "lockstep/comm/collective/arena_engine.h"

#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/arena_labels.h"
#include "lockstep/comm/collective/arena_small.h"
#include "lockstep/comm/collective/arena_stall.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

using arena::Slot;

bool reached(const std::atomic<std::uint32_t>& word, std::uint32_t target) {
  return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

// Takes a cache line away from those who have read it, ahead of the write to it. x86 has an instruction for it, which
// compilers use only if they are told that it exists; processors that do not have it pass it by.
#if defined(__x86_64__)
__attribute__((target("prfchw")))
#endif
void prefetch_to_write(const void* line) {
  __builtin_prefetch(line, 1);
}

}  // namespace

ArenaEngine::ArenaEngine(std::unique_ptr<Arena> arena)
    : EngineBase(arena->rank(), arena->size(), arena->generation()),
      arena_(std::move(arena)),
      inputs_(static_cast<std::size_t>(size())),
      in_place_(*arena_) {
  static_assert(kInFlight == arena::kInFlight);
}

ArenaEngine::~ArenaEngine() {
  // For those who wait for this rank.
  if (failure_note_->is_set() && arena_->fork_guard().is_here()) write_label(*arena_, next(), 0, *failure_note_);
}

void ArenaEngine::begin(Operation& op, const Collective& collective) {
  const std::uint64_t sequence = op.signature.sequence;
  write_slot(op, collective);
  if (collective.name != 0 || failure_note_->is_set()) write_label(*arena_, sequence, collective.name, *failure_note_);
  arena_->slot(rank(), sequence).posted.store(static_cast<std::uint32_t>(sequence), std::memory_order_release);
  arena_->ring();
  // What can wait is done while the news travels to the others' cores, and theirs to this one.
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) __builtin_prefetch(&arena_->slot(peer, sequence));
  }
  prefetch_to_write(&arena_->slot(rank(), sequence + 1));
}

void ArenaEngine::write_slot(Operation& op, const Collective& collective) {
  Slot& slot = arena_->slot(rank(), op.signature.sequence);
  std::memcpy(slot.signature, &op.signature, sizeof op.signature);
  slot.segments = 0;
  if (is_small(collective, size())) {
    way_of(op) = Way::small;
    write_small(collective, rank(), size(), slot);
  } else {
    way_of(op) = in_place_.offer(collective, slot) ? Way::in_place : Way::staged;
  }
}

bool ArenaEngine::all_posted(const Operation& op) const {
  const auto wanted = static_cast<std::uint32_t>(op.signature.sequence);
  for (int peer = 0; peer < size(); ++peer) {
    // A peer that is already ahead has reused this slot only if all have finished with it.
    if (arena_->slot(peer, op.signature.sequence).posted.load(std::memory_order_acquire) != wanted) return false;
  }
  return true;
}

bool ArenaEngine::all_reduced(const Operation& op) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (!reached(arena_->control(peer).reduced, static_cast<std::uint32_t>(op.signature.sequence))) return false;
  }
  return true;
}

bool ArenaEngine::actionable(const Operation& op) const {
  return op.phase == Phase::posted ? all_posted(op) : op.phase == Phase::reduced && all_reduced(op);
}

void ArenaEngine::advance(Operation& op) {
  if (!actionable(op)) return;
  if (op.phase == Phase::reduced) return complete(op);
  if (!all_agree(op)) {
    throw difference(op);
  } else if (way_of(op) == Way::small) {
    finish_small(*arena_, op.collective, op.signature.sequence, inputs_);
    complete(op);
  } else if (way_of(op) == Way::in_place && in_place_.is_offered_by_all(op.signature)) {
    begin_move();
    in_place_.reduce(op.collective, op.signature);
    arena_->control(rank()).reduced.store(static_cast<std::uint32_t>(op.signature.sequence), std::memory_order_release);
    arena_->ring();
    op.phase = Phase::reduced;
  } else {
    begin_move();
    StagedCall call{*arena_, op.collective, chunk_, writer_, inputs_, op.deadline, [&](const WaitFailure& stall) {
                      return explain_stall(*arena_, op.signature, stall);
                    }};
    run_staged(call);
    complete(op);
  }
}

bool ArenaEngine::all_agree(const Operation& op) {
  bool is_one_line = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Slot& slot = arena_->slot(peer, op.signature.sequence);
    if (std::memcmp(slot.signature, &op.signature, kAgreedBytes) != 0) return false;
    is_one_line &= std::memcmp(slot.signature + kAgreedBytes, &op.signature.line, sizeof op.signature.line) == 0;
  }
  if (is_one_line || call_sites_ == CallSites::free) return true;
  if (call_sites_ == CallSites::must_match) return false;
  for (int peer = 0; peer < size() && !has_warned_of_line_; ++peer) {
    const CallSide side = side_of(*arena_, peer, op.signature.sequence);
    if (!is_other_line(side.signature, op.signature)) continue;
    has_warned_of_line_ = true;
    log_warning(describe_other_line(side.who, side.signature, op.signature));
  }
  return true;
}

// All ranks find the same: they have posted, and look at the same slots.
Error ArenaEngine::difference(const Operation& op) const {
  std::vector<CallSide> sides;
  for (int peer = 0; peer < size(); ++peer) sides.push_back(side_of(*arena_, peer, op.signature.sequence));
  return desync_error(rank(), std::move(sides));
}

void ArenaEngine::begin_move() {
  if (!meter_.is_moving()) meter_.moves(tsc_clock().now());
}

void ArenaEngine::complete(Operation& op) {
  const TimePoint now = finish(op);
  arena::RankControl& mine = arena_->control(rank());
  mine.finished_ns.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  mine.finished.store(static_cast<std::uint32_t>(op.signature.sequence), std::memory_order_release);
}

void ArenaEngine::await(Operation& op, Deadline deadline) {
  // The oldest must move in the end, but until then there may be a share of a later one to do.
  const auto any_actionable = [this] {
    for (std::uint64_t number = oldest(); number != next(); ++number) {
      const Operation& each = operation(number);
      if (actionable(each)) return true;
      if (each.phase == Phase::posted) return false;
    }
    return false;
  };
  if (op.phase == Phase::posted) {
    begin_wait(op);
  } else {
    begin_move();
  }
  // Two words to carry, which a std::function holds without memory of its own.
  const auto waiting_for = [this, &op](int peer) {
    const auto wanted = static_cast<std::uint32_t>(op.signature.sequence);
    return op.phase == Phase::posted ? arena_->slot(peer, wanted).posted.load(std::memory_order_acquire) != wanted
                                     : !reached(arena_->control(peer).reduced, wanted);
  };
  arena_->await(
      any_actionable, waiting_for,
      [&](const WaitFailure& stall) { return explain_stall(*arena_, op.signature, stall); }, deadline);
}

Error ArenaEngine::fail(const Operation& op, const Error& error) {
  if (error.kind() == ErrorKind::desync) return error;  // each rank finds it, and names its own call first
  // A rank that has seen a difference may have left before this one looked.
  if (op.phase == Phase::posted && all_posted(op) && !all_agree(op)) return difference(op);
  arena_->abort(error);
  return error;
}

void ArenaEngine::look_at_peers() {
  const int peer = arena_->find_dead();
  if (peer >= 0) throw peer_lost({.peer = peer, .name = arena_->peer_name(peer), .how = Departure::died}, rank());
}

}  // namespace lockstep::internal
