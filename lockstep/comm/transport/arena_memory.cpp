#include "lockstep/comm/transport/arena_memory.h"

#include <new>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/transport/round_up.h"

namespace lockstep::internal {
namespace {

using arena::RankControl;
using arena::Slot;

constexpr std::size_t of_ranks(int ranks, std::size_t each) { return static_cast<std::size_t>(ranks) * each; }

constexpr std::size_t controls_offset() { return round_up(sizeof(arena::ArenaHeader), arena::kPage); }
constexpr std::size_t slots_offset(int ranks) {
  return round_up(controls_offset() + of_ranks(ranks, sizeof(RankControl)), arena::kPage);
}
constexpr std::size_t rings_begin(int ranks) {
  return round_up(slots_offset(ranks) + of_ranks(ranks, arena::kSlots * sizeof(Slot)), arena::kPage);
}
std::size_t segments_offset(int ranks) {
  return round_up(rings_begin(ranks) + ByteRings::region_bytes(ranks), kHugePageBytes);
}

}  // namespace

std::size_t whole_segment_bytes(std::size_t segment_bytes) { return round_up(segment_bytes, kHugePageBytes); }

std::size_t arena_bytes(int ranks, std::size_t segment_bytes) {
  return segments_offset(ranks) + of_ranks(ranks, segment_bytes);
}

std::size_t checked_segment_bytes(const arena::ArenaHeader& header, std::size_t bytes, int ranks) {
  const Origin origin("the head of shared memory");
  if (bytes < arena_bytes(ranks, kStagingAreaBytes)) {
    throw_corrupt(origin, fmt::format("it has {} bytes, which are too few for {} ranks", bytes, ranks));
  }
  // Read once: the memory belongs to other processes, too.
  const std::uint64_t told = const_cast<const volatile std::uint64_t&>(header.segment_bytes);
  const std::size_t most = (bytes - segments_offset(ranks)) / static_cast<std::size_t>(ranks);
  return checked_between(told, kStagingAreaBytes, most, "size of a segment", origin);
}

void format_arena(const Mapping& mapping, int ranks, std::size_t segment_bytes, std::uint64_t generation,
                  std::uint64_t nonce) {
  std::byte* base = mapping.data();
  mapping.populate(base, rings_begin(ranks) + SharedControl::bytes(ranks));
  auto* header = new (base) arena::ArenaHeader{};
  header->version = arena::kVersion;
  header->ranks = static_cast<std::uint32_t>(ranks);
  header->segment_bytes = segment_bytes;
  header->generation = generation;
  header->nonce = nonce;
  // The rest of the memory is zero, which is the initial state of every word in it.
  header->magic = arena::kMagic;
}

ByteRings rings_of(const std::shared_ptr<Mapping>& mapping, int ranks) {
  return {std::shared_ptr<std::byte>(mapping, mapping->data() + rings_begin(ranks)), ranks};
}

ArenaMemory::ArenaMemory(const Mapping& mapping, int ranks)
    : header(reinterpret_cast<arena::ArenaHeader*>(mapping.data())),
      controls(reinterpret_cast<RankControl*>(mapping.data() + controls_offset())),
      slots(reinterpret_cast<Slot*>(mapping.data() + slots_offset(ranks))),
      segments(mapping.data() + segments_offset(ranks)),
      segment_bytes(checked_segment_bytes(*header, mapping.size(), ranks)) {}

}  // namespace lockstep::internal
