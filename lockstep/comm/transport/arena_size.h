// How much address space an arena reserves. Memory itself is taken page by page, as it is used. ArenaRoom -> segment.
// Pure, but for room_of_this_process().
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal {

// What a process may map.
struct ArenaRoom {
  std::size_t memory = 0;                       // of the machine
  std::size_t addresses = 0;                    // that the process can still map at a time
  std::size_t file = ~std::size_t{0};           // the longest file that it may make
  std::size_t address_limit = ~std::size_t{0};  // as set (`ulimit -v`); all ones: none
};

// A smaller segment is not worth it: it holds the staging buffers and little else.
inline constexpr std::size_t kMinSegmentBytes = std::size_t{32} << 20;

// A rank's segment in an arena of `ranks` ranks: half of the machine's memory, or less if the arena would take more
// than half of the addresses, which leaves the other half to the rest of the program. 0: not even kMinSegmentBytes.
std::size_t segment_bytes_for(const ArenaRoom& room, int ranks);
// Why that is 0, and what to do.
std::string shortage_of(const ArenaRoom& room, int ranks);

// Takes the addresses that an arena of `ranks` ranks would take, for a moment.
ArenaRoom room_of_this_process(int ranks);

}  // namespace lockstep::internal
