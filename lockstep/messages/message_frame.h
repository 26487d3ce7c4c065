// What travels between two messengers: a header of fixed size, for some kinds followed by bytes. A small message is one
// eager frame. A large one, or one for which the receiver has no room, is announced, cleared by the receiver once it
// has a receive for it, and then sent as data frames.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The largest message that is sent without having been asked for.
inline constexpr std::size_t kEagerBytes = std::size_t{64} << 10;
// What such messages without a receive may take at their receiver, for each sender.
inline constexpr std::size_t kUnexpectedBytes = std::size_t{8} << 20;
// The same for the number of announcements; further messages wait at their sender.
inline constexpr std::size_t kMaxPendingRts = std::size_t{64} << 10;
// A large message is sent in frames of this size, so that others get their turn.
inline constexpr std::size_t kDataFrameBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxReasonBytes = 1024;

// What an eager message costs of kUnexpectedBytes; covers what it takes to remember it.
constexpr std::size_t eager_cost_bytes(std::size_t message_bytes) { return message_bytes + 256; }

enum class FrameKind : std::uint32_t {
  eager = 1,  // tag, bytes; the message follows
  announce,   // tag, id, bytes
  clear,      // id
  reject,     // id; bytes: what the receive expects instead
  data,       // id; bytes: the offset in the message; a part of the message follows
  withdraw,   // tag, id of a message that was announced and will not be sent
  credit,     // bytes: what has become free of kUnexpectedBytes
  fail,       // this link has failed; the reason follows
  goodbye,    // its messenger ends; nothing follows
  ask,        // for a heartbeat
  answer,     // the sign follows: see Heartbeat
};

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x314d534c;  // "LSM1"

  std::uint32_t magic = kMagic;
  FrameKind kind = FrameKind::eager;
  std::uint64_t tag = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t following_bytes = 0;
};
static_assert(sizeof(FrameHeader) == 40);

}  // namespace lockstep
