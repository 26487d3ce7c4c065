// What lies where in an arena's memory, as every process of a node sees it. Only trivially copyable, address-free
// types: the memory is mapped at different addresses in different processes.
//
//   ArenaHeader | RankControl x n | slots: n x kSlots x Slot | shared control | streams | segments: n x segment_bytes
//
//   shared control = AbortRecord | RankBells x n | AnnouncementRecord x n
//   streams        = RingControl x n (n - 1) | rings: n (n - 1) x kRingBytes
//   a segment      = kStagingBuffers staging buffers of kStagingBytes, then the heap
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::internal::arena {

inline constexpr std::uint64_t kMagic = 0x314e45524150534cULL;  // "LSPAREN1"
inline constexpr std::uint32_t kVersion = 6;
inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kPage = 4096;

// At most kInFlight collectives of one rank are unfinished at a time. A rank that posts collective s has finished s -
// kInFlight, so all ranks have posted that one, so all ranks have finished s - 2 * kInFlight: with twice as many slots
// nobody still reads the one that is overwritten.
inline constexpr std::uint32_t kInFlight = 16;
inline constexpr std::uint32_t kSlots = 2 * kInFlight;
inline constexpr std::size_t kInlineBytes = 16;
inline constexpr std::size_t kSlotPayloadBytes = 16 * 1024;
inline constexpr std::size_t kStagingBytes = 1 << 20;
inline constexpr std::uint32_t kStagingBuffers = 3;
inline constexpr std::size_t kSignatureBytes = 40;
inline constexpr std::size_t kLabelNameBytes = 120;
inline constexpr std::size_t kLabelFailureBytes = 640;

// What a rank says of its collective in words, for errors only: what its signature has a hash of, and what failed on it
// before. Written where there is something to say.
struct SlotLabel {
  std::uint32_t sequence;  // low half, of the collective that it belongs to
  std::uint32_t reserved;
  std::byte name[kLabelNameBytes];  // a FlightName
  char failure[kLabelFailureBytes];
};

// One collective of one rank. The first cache line is all that the smallest messages need.
struct alignas(kCacheLine) Slot {
  std::atomic<std::uint32_t> posted;  // low half of the sequence number, written last
  std::uint32_t segments;             // in-place operations: how many SegmentRefs the payload holds; 0: staged
  std::byte signature[kSignatureBytes];
  std::byte inlined[kInlineBytes];
  std::byte payload[kSlotPayloadBytes];
  alignas(kCacheLine) SlotLabel label;
};
static_assert(offsetof(Slot, payload) == kCacheLine);

// A piece of a rank's operand, as an offset into that rank's segment.
struct SegmentRef {
  std::uint64_t offset;
  std::uint64_t bytes;
};
inline constexpr std::size_t kMaxSegmentRefs = kSlotPayloadBytes / sizeof(SegmentRef);

enum class RankState : std::uint32_t { absent, joined, left };

// What one rank tells the others; one cache line a purpose, so that a writer disturbs only those who wait for it.
struct RankControl {
  alignas(kCacheLine) std::atomic<std::uint32_t> reduced;     // last collective whose slice this rank has reduced
  alignas(kCacheLine) std::atomic<std::uint32_t> filled;      // staged chunks copied in, over all collectives
  alignas(kCacheLine) std::atomic<std::uint32_t> drained;     // staged chunks whose slice this rank has reduced
  alignas(kCacheLine) std::atomic<std::int64_t> finished_ns;  // when, on the monotonic clock, it ended ...
  std::atomic<std::uint32_t> finished;                        // ... this collective; the last one it ended
  alignas(kCacheLine) std::atomic<std::uint32_t> core;        // where this rank waited last, counted from 1; 0: unknown
  alignas(kCacheLine) std::atomic<RankState> state;
};

inline constexpr std::size_t kAbortTextBytes = 2048;

// The first error that ends the group, for all ranks to repeat. A rank that ends it takes a place, writes there, and
// then points to it, unless another was first. So a writer that stops or dies half way delays nobody.
struct AbortRecord {
  struct Place {
    std::uint32_t kind;
    std::int32_t peer;
    std::uint32_t text_bytes;
    char text[kAbortTextBytes];
  };
  static constexpr std::uint32_t kPlaces = 3;
  alignas(kCacheLine) std::atomic<std::uint32_t> first;  // 1 + the place that counts; 0: the group goes on
  std::atomic<std::uint32_t> taken;                      // places; more than there are if more have tried
  Place places[kPlaces];
};

// Where one thread sleeps; see doorbell.h.
struct Doorbell {
  std::atomic<std::uint32_t> rings;  // how often it has rung
  std::atomic<std::uint32_t> sleeping;
};

// Where the threads of one rank sleep, and whether it has left its mesh.
struct RankBells {
  alignas(kCacheLine) Doorbell collectives;
  alignas(kCacheLine) Doorbell messages;
  alignas(kCacheLine) std::atomic<std::uint32_t> left;
};

// How far the stream from one rank to another has come. What was sent and not yet received lies in its ring.
struct RingControl {
  alignas(kCacheLine) std::atomic<std::uint64_t> sent;
  alignas(kCacheLine) std::atomic<std::uint64_t> received;
  std::atomic<std::uint32_t> wants_room;  // the sender sleeps until something is received
};
inline constexpr std::size_t kRingBytes = std::size_t{128} << 10;

struct ArenaHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t ranks;
  std::uint64_t segment_bytes;
  std::uint64_t generation;
  std::uint64_t nonce;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "shared memory needs address-free atomics");

}  // namespace lockstep::internal::arena
