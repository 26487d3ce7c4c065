// Streams of bytes between any two of n ranks, as rings in memory that all of them map (see arena_layout.h). Memory ->
// ByteRings -> the meshes of ranks that share it. Never blocks; who waits for bytes or room, and how it is woken, is
// the mesh's business. One thread on each side of a ring.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/bytes.h"
#include "lockstep/transport/arena_layout.h"

namespace lockstep {

// One stream. Its sender owns control->sent, its receiver control->received; both only grow.
struct ByteRing {
  arena::RingControl* control = nullptr;
  std::byte* memory = nullptr;

  // Bytes sent and not yet received. More than kRingBytes if the memory is damaged.
  std::uint64_t filled() const {
    return control->sent.load(std::memory_order_acquire) - control->received.load(std::memory_order_acquire);
  }
  // Moves as many bytes as there are, and room for. REQUIRES: room <= kRingBytes - filled(), available <= filled().
  std::size_t put(ByteSpan data, std::uint64_t room) const;
  std::size_t take(MutableByteSpan data, std::uint64_t available) const;
};

// `region` is zeroed when nobody has used it, aligned to pages, and outlives this.
class ByteRings {
 public:
  ByteRings(std::byte* region, int ranks);
  // How much memory the rings of n ranks take: one for every ordered pair, whose pages are taken as they are used.
  static std::size_t region_bytes(int ranks);

  int ranks() const { return ranks_; }
  arena::AbortRecord& abort() const;
  arena::RingRank& rank(int rank) const;
  ByteRing ring(int from, int to) const;

 private:
  std::byte* region_;
  int ranks_;
};

}  // namespace lockstep
