// How large a mapping an arena needs, what lies where in it, and whether a mapping that another process made is what it
// says. bytes -> ArenaMemory -> Arena. Pure, but for format_arena().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/comm/transport/arena_layout.h"
#include "lockstep/comm/transport/byte_rings.h"
#include "lockstep/comm/transport/mapping.h"

namespace lockstep::internal {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// `segment_bytes` in whole huge pages.
std::size_t whole_segment_bytes(std::size_t segment_bytes);
std::size_t arena_bytes(int ranks, std::size_t segment_bytes);

// How much of a mapping of `bytes` is each rank's segment, by its header, which another process wrote.
// Error{corrupt_data} unless everything that `ranks` ranks need lies in the mapping.
std::size_t checked_segment_bytes(const arena::ArenaHeader& header, std::size_t bytes, int ranks);

// Lays out a mapping that is all zeros.
void format_arena(const Mapping& mapping, int ranks, std::size_t segment_bytes, std::uint64_t generation,
                  std::uint64_t nonce);

// The rings, abort record and doorbells of the ranks. They keep the mapping alive.
ByteRings rings_of(const std::shared_ptr<Mapping>& mapping, int ranks);

// Where the parts of a mapping lie.
struct ArenaMemory {
  ArenaMemory(const Mapping& mapping, int ranks);

  arena::ArenaHeader* header;
  arena::RankControl* controls;
  arena::Slot* slots;
  std::byte* segments;
  std::size_t segment_bytes;
};

// What staging takes of a segment; the heap gets the rest.
inline constexpr std::size_t kStagingAreaBytes = arena::kStagingBuffers * arena::kStagingBytes;

}  // namespace lockstep::internal
