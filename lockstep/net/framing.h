// Framing cuts a stream into messages: three u32 (length, CRC-32 of the message, CRC-32 of these two) and the message.
// message -> frame -> stream -> frame -> message. Whatever was damaged on the way is Error{corrupt_data}, and so is a
// length over the caller's limit, before any memory is taken for it. This is no protection from those who mean harm.
#pragma once

#include <cstddef>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"

namespace lockstep {

inline constexpr std::size_t kFrameHeaderBytes = 12;

// The frame of a payload, to be sent as it is. Error{invalid_argument} over the limit.
Bytes frame(ByteView payload, std::size_t limit_bytes);

// Over a connected descriptor; they block, and fail as send_all() and recv_all() do.
void send_frame(int fd, ByteView payload, std::size_t limit_bytes, Deadline deadline);
Bytes recv_frame(int fd, std::size_t limit_bytes, Deadline deadline);

// Cuts what arrives in pieces. Memory grows with what has arrived, not with what a length promises. Not thread-safe.
class FrameBuffer {
 public:
  explicit FrameBuffer(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  void append(ByteView received) { buffer_.append(received); }
  // The next whole payload, if one is there. REQUIRES: after an Error the stream is closed.
  std::optional<Bytes> next();

 private:
  std::size_t limit_bytes_;
  std::size_t start_ = 0;
  Bytes buffer_;
};

}  // namespace lockstep
