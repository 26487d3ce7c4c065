#include "lockstep/comm/transport/byte_rings.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/transport/round_up.h"

namespace lockstep::internal {
namespace {

using arena::RingControl;

constexpr std::size_t pairs(int ranks) { return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks - 1); }

std::size_t rings_offset(int ranks) {
  return round_up(SharedControl::bytes(ranks) + pairs(ranks) * sizeof(RingControl), arena::kPage);
}

// Copies between a ring, from `offset` on, and other memory.
template <class Copy>
void in_two_parts(std::size_t offset, std::size_t bytes, std::size_t capacity, Copy&& copy) {
  const std::size_t first = std::min(bytes, capacity - offset);
  copy(offset, 0, first);
  copy(0, first, bytes - first);
}

}  // namespace

std::uint64_t ByteRing::checked_filled(const RingEnds& ends) const {
  const std::uint64_t bytes = filled();
  if (bytes <= capacity) return bytes;
  throw Error(ErrorKind::corrupt_data,
              fmt::format("the ring of shared memory between rank {} and {} is damaged: {} bytes have been sent and {} "
                          "received, which is impossible; a process of this host corrupted it: start the "
                          "job again",
                          ends.rank, ends.peer_name, control->sent.load(), control->received.load()),
              {.rank = ends.rank, .peer = ends.peer});
}

bool ByteRing::wakes_sender() const {
  // Pairs with the sender's fence between its saying so and its last look before it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (control->wants_room.load(std::memory_order_relaxed) == 0) return false;
  control->wants_room.store(0, std::memory_order_relaxed);
  return true;
}

std::size_t ByteRing::put(ByteSpan data, const RingEnds& ends) const {
  const std::size_t bytes = std::min<std::size_t>(data.size(), capacity - checked_filled(ends));
  if (bytes == 0) return 0;
  const std::uint64_t at = control->sent.load(std::memory_order_relaxed);
  in_two_parts(at & (capacity - 1), bytes, capacity, [&](std::size_t in_ring, std::size_t in_data, std::size_t count) {
    std::memcpy(memory + in_ring, data.data() + in_data, count);
  });
  control->sent.store(at + bytes, std::memory_order_release);
  return bytes;
}

std::size_t ByteRing::take(MutableByteSpan space, const RingEnds& ends) const {
  const std::size_t bytes = std::min<std::size_t>(space.size(), checked_filled(ends));
  if (bytes == 0) return 0;
  const std::uint64_t at = control->received.load(std::memory_order_relaxed);
  in_two_parts(at & (capacity - 1), bytes, capacity, [&](std::size_t in_ring, std::size_t in_space, std::size_t count) {
    std::memcpy(space.data() + in_space, memory + in_ring, count);
  });
  control->received.store(at + bytes, std::memory_order_release);
  return bytes;
}

ByteRings::ByteRings(std::shared_ptr<std::byte> region, int ranks, std::size_t ring_bytes)
    : region_(std::move(region)), control_(region_.get(), ranks), ring_bytes_(ring_bytes) {
  if (!std::has_single_bit(ring_bytes)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("ring_bytes is {}; it must be a power of two", ring_bytes));
  }
}

std::size_t ByteRings::region_bytes(int ranks, std::size_t ring_bytes) {
  return rings_offset(ranks) + pairs(ranks) * ring_bytes;
}

ByteRing ByteRings::ring(int from, int to) const {
  const auto index = static_cast<std::size_t>(from * (ranks() - 1) + to - (to > from ? 1 : 0));
  return {reinterpret_cast<RingControl*>(region_.get() + SharedControl::bytes(ranks())) + index,
          region_.get() + rings_offset(ranks()) + index * ring_bytes_, ring_bytes_};
}

}  // namespace lockstep::internal
