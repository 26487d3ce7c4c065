#include "lockstep/net/framing.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/net/socket.h"
#include "lockstep/net/wire.h"

namespace lockstep {
namespace {

constexpr std::size_t kReceiveStepBytes = std::size_t{1} << 20;

std::size_t checked_length(ByteView header, std::size_t limit_bytes) {
  const std::uint32_t length = WireReader(header, "a frame header").u32();
  if (length > limit_bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("a peer announced a message of {} bytes; the limit here is {}", length, limit_bytes));
  }
  return length;
}

}  // namespace

Bytes frame(ByteView payload, std::size_t limit_bytes) {
  if (payload.size() > limit_bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("a message of {} bytes is over the limit of {}", payload.size(), limit_bytes));
  }
  Bytes out;
  out.reserve(kFrameHeaderBytes + payload.size());
  put_bytes(out, payload);
  return out;
}

void send_frame(int fd, ByteView payload, std::size_t limit_bytes, Deadline deadline) {
  send_all(fd, as_span(ByteView(frame(payload, limit_bytes))), deadline);
}

Bytes recv_frame(int fd, std::size_t limit_bytes, Deadline deadline) {
  Bytes header(kFrameHeaderBytes, '\0');
  recv_all(fd, as_span(header), deadline);
  const std::size_t length = checked_length(header, limit_bytes);
  Bytes payload;
  while (payload.size() < length) {
    const std::size_t start = payload.size();
    payload.resize(std::min(length, start + kReceiveStepBytes));
    recv_all(fd, as_span(payload).subspan(start), deadline);
  }
  return payload;
}

std::optional<Bytes> FrameBuffer::next() {
  const ByteView unread = ByteView(buffer_).substr(start_);
  if (unread.size() < kFrameHeaderBytes) return std::nullopt;
  const std::size_t length = checked_length(unread.substr(0, kFrameHeaderBytes), limit_bytes_);
  if (unread.size() - kFrameHeaderBytes < length) return std::nullopt;
  Bytes payload(unread.substr(kFrameHeaderBytes, length));
  start_ += kFrameHeaderBytes + length;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
    if (buffer_.capacity() > kReceiveStepBytes) buffer_.shrink_to_fit();
  } else if (start_ > kReceiveStepBytes) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  return payload;
}

}  // namespace lockstep
