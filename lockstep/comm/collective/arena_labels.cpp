#include "lockstep/comm/collective/arena_labels.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {

void write_label(const Arena& arena, std::uint64_t sequence, std::uint64_t name, const FailureNote& note) {
  arena::SlotLabel& label = arena.slot(arena.rank(), sequence).label;
  static_assert(sizeof(FlightName) == sizeof label.name);
  const FlightName text = process_recorder().find_name(name);
  std::memcpy(label.name, &text, sizeof text);
  label.failure[0] = '\0';
  if (note.is_set()) {
    const std::string failure = note.text().substr(0, sizeof label.failure - 1);
    std::memcpy(label.failure, failure.c_str(), failure.size() + 1);
  }
  label.sequence = static_cast<std::uint32_t>(sequence);
}

// The memory belongs to another process: nothing in it is trusted.
CallSide side_of(const Arena& arena, int peer, std::uint64_t sequence) {
  const arena::Slot& slot = arena.slot(peer, sequence);
  CallSide side{.rank = peer, .who = arena.peer_name(peer), .signature = {}, .account = {}};
  std::memcpy(&side.signature, slot.signature, sizeof side.signature);
  arena::SlotLabel label;
  std::memcpy(&label, &slot.label, sizeof label);
  if (label.sequence != static_cast<std::uint32_t>(sequence)) return side;
  FlightName name;
  std::memcpy(static_cast<void*>(&name), label.name, sizeof name);
  FlightNames names;
  if (is_sound(name)) names.add(name);
  if (is_sound(name) && side.signature.name != 0) side.account.name = names.text_of(side.signature.name);
  side.account.failure = printable(std::span<const char>(label.failure));
  return side;
}

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
  return Error(ErrorKind::timeout,
               fmt::format("{} timed out on {} after {:.1f} s; missing: {}", describe(signature),
                           arena.peer_name(arena.rank()), stall.elapsed_seconds, missing.empty() ? "nobody" : missing),
               detail);
}

}  // namespace lockstep::internal
