#include "lockstep/transport/byte_rings.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

using arena::kRingBytes;
using arena::RingControl;
using arena::RingRank;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }
constexpr std::size_t pairs(int ranks) { return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks - 1); }

constexpr std::size_t ranks_offset() { return round_up(sizeof(arena::AbortRecord), arena::kCacheLine); }
constexpr std::size_t controls_offset(int ranks) {
  return ranks_offset() + static_cast<std::size_t>(ranks) * sizeof(RingRank);
}
constexpr std::size_t rings_offset(int ranks) {
  return round_up(controls_offset(ranks) + pairs(ranks) * sizeof(RingControl), arena::kPage);
}

}  // namespace

std::uint64_t ByteRing::checked_filled(int rank, int peer, const std::string& peer_name) const {
  const std::uint64_t bytes = filled();
  if (bytes <= kRingBytes) return bytes;
  throw Error(ErrorKind::corrupt_data,
              fmt::format("the ring of shared memory between rank {} and {} is damaged: {} bytes have been sent and {} "
                          "received, which is impossible; a process of this node wrote where it must not, and the job "
                          "must be started again",
                          rank, peer_name, control->sent.load(), control->received.load()),
              {.rank = rank, .peer = peer});
}

bool ByteRing::wakes_sender() const {
  // Pairs with the sender's fence between its saying so and its last look before it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (control->wants_room.load(std::memory_order_relaxed) == 0) return false;
  control->wants_room.store(0, std::memory_order_relaxed);
  return true;
}

std::size_t ByteRing::put(ByteSpan data, std::uint64_t room) const {
  const std::uint64_t at = control->sent.load(std::memory_order_relaxed);
  const std::size_t bytes = std::min<std::size_t>(data.size(), room);
  const std::size_t offset = at % kRingBytes;
  const std::size_t first = std::min(bytes, kRingBytes - offset);
  std::memcpy(memory + offset, data.data(), first);
  std::memcpy(memory, data.data() + first, bytes - first);
  control->sent.store(at + bytes, std::memory_order_release);
  return bytes;
}

std::size_t ByteRing::take(MutableByteSpan data, std::uint64_t available) const {
  const std::uint64_t at = control->received.load(std::memory_order_relaxed);
  const std::size_t bytes = std::min<std::size_t>(data.size(), available);
  const std::size_t offset = at % kRingBytes;
  const std::size_t first = std::min(bytes, kRingBytes - offset);
  std::memcpy(data.data(), memory + offset, first);
  std::memcpy(data.data() + first, memory, bytes - first);
  control->received.store(at + bytes, std::memory_order_release);
  return bytes;
}

ByteRings::ByteRings(std::byte* region, int ranks) : region_(region), ranks_(ranks) {}

std::size_t ByteRings::region_bytes(int ranks) { return rings_offset(ranks) + pairs(ranks) * kRingBytes; }

arena::AbortRecord& ByteRings::abort() const { return *reinterpret_cast<arena::AbortRecord*>(region_); }

RingRank& ByteRings::rank(int rank) const { return reinterpret_cast<RingRank*>(region_ + ranks_offset())[rank]; }

ByteRing ByteRings::ring(int from, int to) const {
  const auto index = static_cast<std::size_t>(from * (ranks_ - 1) + to - (to > from ? 1 : 0));
  return {reinterpret_cast<RingControl*>(region_ + controls_offset(ranks_)) + index,
          region_ + rings_offset(ranks_) + index * kRingBytes};
}

}  // namespace lockstep
