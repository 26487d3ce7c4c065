// Streams of bytes between any two of n ranks, as rings in memory that all of them map (see arena_layout.h), with the
// SharedControl of these ranks in front. Memory -> ByteRings -> ArenaMesh, TcpMesh. Never blocks; the meshes wait for
// bytes and room. One thread on each side of a ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/transport/arena_layout.h"
#include "lockstep/comm/transport/shared_control.h"

namespace lockstep::internal {

// The ranks at the ends of a ring, for errors.
struct RingEnds {
  int rank;
  int peer;
  const std::string& peer_name;
};

// One stream. Its sender owns control->sent, its receiver control->received; both only grow.
struct ByteRing {
  arena::RingControl* control = nullptr;
  std::byte* memory = nullptr;
  std::size_t capacity = 0;  // a power of two

  // Bytes sent and not yet received. More than the capacity if the memory is damaged.
  std::uint64_t filled() const {
    return control->sent.load(std::memory_order_acquire) - control->received.load(std::memory_order_acquire);
  }
  bool has_room() const { return filled() < capacity; }
  // Move as many bytes as there are, and room for; return how many. Error{corrupt_data} if the memory is damaged.
  std::size_t put(ByteSpan data, const RingEnds& ends) const;
  std::size_t take(MutableByteSpan space, const RingEnds& ends) const;
  // To be called before the sender's final check prior to sleeping.
  void await_room() const { control->wants_room.store(1, std::memory_order_relaxed); }
  // After take(): whether the sender sleeps until there is room, which it does no longer. A sender that does not wait
  // for room is left in peace.
  bool wakes_sender() const;

 private:
  std::uint64_t checked_filled(const RingEnds& ends) const;
};

// A value: copies are of the same rings.
class ByteRings {
 public:
  // `region`: region_bytes() long, aligned to pages, zeroed when nobody has used it.
  ByteRings(std::shared_ptr<std::byte> region, int ranks, std::size_t ring_bytes = arena::kRingBytes);
  // How much memory the rings of n ranks take: one for every ordered pair, whose pages are taken as they are used.
  static std::size_t region_bytes(int ranks, std::size_t ring_bytes = arena::kRingBytes);

  int ranks() const { return control_.ranks(); }
  const SharedControl& control() const { return control_; }
  ByteRing ring(int from, int to) const;

 private:
  std::shared_ptr<std::byte> region_;
  SharedControl control_;
  std::size_t ring_bytes_;
};

}  // namespace lockstep::internal
