#include "lockstep/comm/net/framing.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kReceiveStepBytes = std::size_t{1} << 20;
constexpr std::string_view kOrigin = "a message from a peer is damaged";

std::uint32_t crc_of(ByteView bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

// Looks at the first four bytes only, which may be all that has arrived.
std::size_t checked_length(ByteView head, std::size_t limit_bytes, const Origin& origin) {
  const std::uint32_t length = WireReader(head, origin).u32();
  if (length > limit_bytes) {
    throw_corrupt(origin, fmt::format("it announces {} bytes; the limit is {}", length, limit_bytes));
  }
  return length;
}

}  // namespace

Bytes frame(ByteView payload, std::size_t limit_bytes) {
  Bytes out;
  frame_into(out, payload, limit_bytes);
  return out;
}

void frame_into(Bytes& out, ByteView payload, std::size_t limit_bytes) {
  if (payload.size() > limit_bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("a message of {} bytes exceeds the limit of {}", payload.size(), limit_bytes));
  }
  out.clear();
  out.reserve(kFrameHeaderBytes + payload.size());
  put_u32(out, static_cast<std::uint32_t>(payload.size()));
  put_u32(out, crc_of(payload));
  put_u32(out, crc_of(out));
  out.append(payload);
}

FrameHead decode_frame_head(ByteView head, std::size_t limit_bytes, const Origin& origin) {
  const std::size_t length = checked_length(head, limit_bytes, origin);
  WireReader reader(head.substr(sizeof(std::uint32_t)), origin);
  const std::uint32_t payload_crc = reader.u32();
  if (reader.u32() != crc_of(head.substr(0, kFrameHeaderBytes - 4))) {
    throw_corrupt(origin, "the checksum of its header is wrong");
  }
  return {length, payload_crc};
}

void check_frame_payload(const FrameHead& head, ByteView payload, const Origin& origin) {
  if (crc_of(payload) == head.payload_crc) return;
  throw_corrupt(origin, fmt::format("the checksum of its {} bytes is wrong", payload.size()));
}

void send_frame(int fd, ByteView payload, std::size_t limit_bytes, Deadline deadline) {
  send_all(fd, as_span(ByteView(frame(payload, limit_bytes))), deadline);
}

Bytes recv_frame(int fd, std::size_t limit_bytes, Deadline deadline) {
  Bytes bytes(kFrameHeaderBytes, '\0');
  recv_all(fd, as_span(bytes), deadline);
  const FrameHead head = decode_frame_head(bytes, limit_bytes, kOrigin);
  Bytes payload;
  while (payload.size() < head.payload_bytes) {
    const std::size_t start = payload.size();
    payload.resize(std::min(head.payload_bytes, start + kReceiveStepBytes));
    recv_all(fd, as_span(payload).subspan(start), deadline);
  }
  check_frame_payload(head, payload, kOrigin);
  return payload;
}

void FrameBuffer::append(ByteView received) {
  buffer_.erase(0, std::exchange(start_, 0));
  buffer_.append(received);
}

std::optional<Bytes> FrameBuffer::next() {
  const ByteView unread = ByteView(buffer_).substr(start_);
  if (unread.size() < sizeof(std::uint32_t)) return std::nullopt;
  checked_length(unread, limit_bytes_, kOrigin);
  if (unread.size() < kFrameHeaderBytes) return std::nullopt;
  const FrameHead head = decode_frame_head(unread.substr(0, kFrameHeaderBytes), limit_bytes_, kOrigin);
  if (unread.size() - kFrameHeaderBytes < head.payload_bytes) return std::nullopt;
  Bytes payload(unread.substr(kFrameHeaderBytes, head.payload_bytes));
  check_frame_payload(head, payload, kOrigin);
  start_ += kFrameHeaderBytes + head.payload_bytes;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
    if (buffer_.capacity() > kReceiveStepBytes) buffer_.shrink_to_fit();
  }
  return payload;
}

}  // namespace lockstep::internal
