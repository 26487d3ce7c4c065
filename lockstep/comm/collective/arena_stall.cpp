#include "lockstep/comm/collective/arena_stall.h"

#include <algorithm>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/comm/collective/arena_labels.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

// "alive, last seen in barrier #41, left it 3.2 s ago"
PeerHealth health_of(const Arena& arena, int peer) {
  std::uint32_t newest = 0;
  for (std::uint64_t s = 0; s < arena::kSlots; ++s) {
    newest = std::max(newest, arena.slot(peer, s).posted.load(std::memory_order_acquire));
  }
  PeerHealth health{.state = std::string(arena.peer_state(peer)), .place = "last seen in no collective yet"};
  if (newest == 0) return health;
  const CallSide last = side_of(arena, peer, newest);
  health.place = fmt::format("last seen in {}", describe(last.signature, last.account.name));
  const arena::RankControl& theirs = arena.control(peer);
  if (theirs.finished.load(std::memory_order_acquire) != newest) {
    health.inside = last.signature.sequence;
    health.place += ", still inside";
    return health;
  }
  const TimePoint left{Duration(theirs.finished_ns.load(std::memory_order_relaxed))};
  health.place += fmt::format(", left it {:.1f} s ago", seconds(steady_clock().now() - left));
  return health;
}

}  // namespace

Error explain_stall(const Arena& arena, const Signature& signature, const WaitFailure& stall) {
  ErrorDetail detail;
  detail.rank = arena.rank();
  detail.peer = stall.peer;
  detail.operation = to_string(signature.kind);
  detail.sequence = signature.sequence;
  detail.elapsed_seconds = stall.elapsed_seconds;
  if (stall.cause == WaitFailure::Cause::left || stall.cause == WaitFailure::Cause::died) {
    const std::string& name = arena.peer_name(stall.peer);
    const Departure how = stall.cause == WaitFailure::Cause::left ? Departure::left : Departure::died;
    std::string text = describe(departure_in(signature, name, how, arena.peer_name(arena.rank())));
    const std::string failure = side_of(arena, stall.peer, signature.sequence).account.failure;
    if (!failure.empty()) text += fmt::format("; before that, {} failed in {}", name, failure);
    return Error(ErrorKind::peer_lost, text, detail);
  }
  std::string missing;
  for (const int peer : stall.missing) {
    missing += (missing.empty() ? "" : "; ") + describe_missing(arena.peer_name(peer), "", health_of(arena, peer));
  }
  if (!stall.missing.empty() && detail.peer < 0) detail.peer = stall.missing.front();
  if (stall.cause == WaitFailure::Cause::none) {
    return Error(ErrorKind::timeout,
                 fmt::format("{} has waited {:.0f} s for: {}", describe(signature), stall.elapsed_seconds, missing),
                 detail);
  }
  const std::string why =
      missing.empty() ? ", although all ranks have entered it; is a rank slow or stopped?" : "; missing: " + missing;
  return Error(ErrorKind::timeout,
               fmt::format("{} timed out on {} after {:.1f} s{}", describe(signature), arena.peer_name(arena.rank()),
                           stall.elapsed_seconds, why),
               detail);
}

}  // namespace lockstep::internal
