#include "lockstep/comm/collective/arena_labels.h"

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/observe/process_recorder.h"

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

}  // namespace lockstep::internal
