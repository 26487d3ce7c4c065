// What travels between two messengers: a header of fixed size, for some kinds followed by bytes. A small message is one
// eager frame, as far as its sender has credit for memory at the receiver. Any other takes the rendezvous protocol: the
// sender asks with an RTS (request to send), the receiver answers with a CTS (clear to send) once it has a receive for
// it, and data frames follow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::internal {

// The largest eager message.
inline constexpr std::size_t kEagerBytes = std::size_t{64} << 10;
// The credit of each sender: what its eager messages without a receive may take at their receiver.
inline constexpr std::size_t kUnexpectedBytes = std::size_t{8} << 20;
// How many RTS of a sender may wait for a receive; further messages wait at their sender.
inline constexpr std::size_t kMaxPendingRts = std::size_t{64} << 10;
// A large message is sent in frames of this size, so that others get their turn.
inline constexpr std::size_t kDataFrameBytes = std::size_t{256} << 10;
// What one link moves before other links get their turn.
inline constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxReasonBytes = 1024;

// What an eager message costs of its sender's credit; covers what it takes to remember it.
constexpr std::size_t eager_cost_bytes(std::size_t message_bytes) { return message_bytes + 256; }

enum class FrameKind : std::uint32_t {
  eager = 1,  // tag, bytes; the message follows
  rts,        // tag, id, bytes
  cts,        // id
  nack,       // id; bytes: what the receive expects instead
  data,       // id; bytes: the offset in the message; a part of the message follows
  cancel,     // tag, id of an RTS whose message will not be sent
  credit,     // bytes: what the receiver returns of the sender's credit
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

}  // namespace lockstep::internal
