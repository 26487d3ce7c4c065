// Frames: messages in a stream, or records in a file. message -> frame -> stream -> frame -> message.
//   frame = u32 length | u32 CRC-32 of the message | u32 CRC-32 of these two | message
// Damage is Error{corrupt_data}, and so is a length over the caller's limit, before any memory is taken for it. The
// checksums protect from accidents, not from attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/deadline.h"

namespace lockstep::internal {

inline constexpr std::size_t kFrameHeaderBytes = 12;

// Error{invalid_argument} over the limit.
Bytes frame(ByteView payload, std::size_t limit_bytes);
// The same in place of what `out` holds; takes no memory if it has the capacity.
void frame_into(Bytes& out, ByteView payload, std::size_t limit_bytes);

struct FrameHead {
  std::size_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
};
// Errors begin with the origin. REQUIRES: the head has kFrameHeaderBytes.
FrameHead decode_frame_head(ByteView head, std::size_t limit_bytes, const Origin& origin);
void check_frame_payload(const FrameHead& head, ByteView payload, const Origin& origin);

// Over a connected descriptor. They block, and fail as send_all() and recv_all() do.
void send_frame(int fd, ByteView payload, std::size_t limit_bytes, Deadline deadline);
Bytes recv_frame(int fd, std::size_t limit_bytes, Deadline deadline);

// Takes frames out of bytes that arrive in pieces. Memory grows with what has arrived, not with what a length promises.
// Not thread-safe.
class FrameBuffer {
 public:
  explicit FrameBuffer(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // So that appends take no memory while no more than this many bytes of incomplete messages and new bytes are held.
  void reserve(std::size_t bytes) { buffer_.reserve(bytes); }
  void append(ByteView received);
  // The next complete message, if there is one. REQUIRES: after an Error the stream is closed.
  std::optional<Bytes> next();

 private:
  std::size_t limit_bytes_;
  std::size_t start_ = 0;
  Bytes buffer_;
};

}  // namespace lockstep::internal
