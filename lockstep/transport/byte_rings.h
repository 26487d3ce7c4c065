// Streams of bytes between any two of n ranks, as rings in memory that all of them map (see arena_layout.h). Memory ->
// ByteRings -> the meshes of ranks that share it. Never blocks; who waits for bytes or room, and how it is woken, is
// the mesh's business. One thread on each side of a ring.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
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
  // The same, or Error{corrupt_data} that names both ranks.
  std::uint64_t checked_filled(int rank, int peer, const std::string& peer_name) const;
  // Moves as many bytes as there are, and room for. REQUIRES: room <= kRingBytes - filled(), available <= filled().
  std::size_t put(ByteSpan data, std::uint64_t room) const;
  std::size_t take(MutableByteSpan data, std::uint64_t available) const;
  // After take(): whether the sender sleeps until there is room, which it does no longer. A sender that does not wait
  // for room is left in peace.
  bool wakes_sender() const;
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

// Looks for what a peer does in memory, by calling `is_ready`: for a moment without pause, then between turns of other
// processes, so that a peer on another core answers, or one on this core gets its turn. Calls `at_turn` before each of
// those looks. False if nothing came of it; then it is time to sleep.
template <class IsReady, class AtTurn>
bool look_for_peer(Deadline deadline, IsReady is_ready, AtTurn at_turn) {
  constexpr int kSpins = 100;
  constexpr Duration kYieldFor = std::chrono::microseconds(100);
  for (int turn = 0; turn < kSpins; ++turn) {
    if (is_ready()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  const TimePoint start = steady_clock().now();
  for (TimePoint now = start; now - start < kYieldFor && !deadline.expired(now); now = steady_clock().now()) {
    ::sched_yield();
    at_turn();
    if (is_ready()) return true;
  }
  return false;
}

}  // namespace lockstep
