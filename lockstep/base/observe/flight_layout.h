// The layout of a flight recording, in memory that outlives the recording process, and in files.
//
//   FlightHeader, filled up to kHeaderBytes | kGroups x Slot (FlightGroup) | kSlots x Slot (FlightRecord)
//     | kNames x Slot (FlightName) | kPhases x Slot (FlightPhase)
//
// Operation n lies in slot n mod kSlots, group g in slot group_slot(g), phase p in slot p mod kPhases, and a name in
// one of FlightName::kPlaces slots from hash mod kNames on. A slot's version is 8 n + 2 step, plus 1 while it is being
// written; the steps of an operation are issued, running, over. A writer that changes a version from even to odd owns
// the slot until it makes the version even again. An update that finds another version than it left is dropped: the
// slot belongs to a later operation. A name's version only counts. A reader trusts words that it has read between two
// reads of the same even version.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/observe/flight_phase.h"
#include "lockstep/base/observe/flight_record.h"
#include "lockstep/base/observe/live_numbers.h"

namespace lockstep::internal::flight {

inline constexpr std::uint64_t kMagic = 0x31484c464b434f4cULL;  // "LOCKFLH1"
inline constexpr std::uint32_t kVersion = 6;
inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::size_t kSlots = 1024;
inline constexpr std::size_t kGroups = 256;
// Groups count from 1. The first one, which is the world, keeps its slot.
constexpr std::size_t group_slot(std::uint64_t number) { return number <= 1 ? 0 : 1 + (number - 2) % (kGroups - 1); }
inline constexpr std::size_t kNames = 512;
inline constexpr std::size_t kPhases = 1024;
inline constexpr std::size_t kWords = sizeof(FlightRecord) / sizeof(std::uint64_t);

struct Slot {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> words[kWords];
};
static_assert(sizeof(Slot) == 128);

enum class SlotState : std::uint8_t { empty, torn, whole };

// Copies a slot's value; torn if every attempt met a writer.
template <class Value>
SlotState read_slot(const Slot& slot, Value& value) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint64_t before = slot.version.load(std::memory_order_acquire);
    if (before == 0) return SlotState::empty;
    std::array<std::uint64_t, kWords> words;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if ((before & 1) != 0 || slot.version.load(std::memory_order_relaxed) != before) continue;
    value = std::bit_cast<Value>(words);
    return SlotState::whole;
  }
  return SlotState::torn;
}

struct FlightHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::uint32_t groups;
  std::int32_t rank;  // of the job; -1: not known
  std::int32_t world_size;
  std::atomic<std::int32_t> pid;  // 0: no process has recorded here; written last
  std::int64_t wall_ns;           // the wall clock's time when ...
  std::int64_t monotonic_ns;      // ... the monotonic clock showed this
  std::atomic<std::uint64_t> operations;
  std::atomic<std::uint32_t> groups_made;
  // How the world could not be connected: 0, or 1 + the kind in the highest byte, and 1 + the rank that the error
  // names.
  std::atomic<std::uint32_t> failed_start;
  char host[64];
  char job[64];
  char ended[256];  // how the process ended; empty: not known
  std::atomic<std::uint64_t> phases;
  LiveNumbers live;
};
static_assert(sizeof(FlightHeader) <= kHeaderBytes);

inline constexpr std::size_t kGroupsOffset = kHeaderBytes;
inline constexpr std::size_t kSlotsOffset = kGroupsOffset + kGroups * sizeof(Slot);
inline constexpr std::size_t kNamesOffset = kSlotsOffset + kSlots * sizeof(Slot);
inline constexpr std::size_t kPhasesOffset = kNamesOffset + kNames * sizeof(Slot);
inline constexpr std::size_t kBytes = kPhasesOffset + kPhases * sizeof(Slot);

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::int32_t>::is_always_lock_free,
              "shared memory needs address-free atomics");

}  // namespace lockstep::internal::flight
