#include "lockstep/net/framing.h"

#include <zlib.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/net/socket.h"
#include "lockstep/net/wire.h"

namespace lockstep {
namespace {

constexpr std::size_t kReceiveStepBytes = std::size_t{1} << 20;

std::uint32_t crc_of(ByteView bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

// Looks at no more than the first four bytes, which may be all that is there.
std::size_t checked_length(ByteView header, std::size_t limit_bytes) {
  const std::uint32_t length = WireReader(header, "a frame header").u32();
  if (length > limit_bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("a peer announced a message of {} bytes; the limit here is {}", length, limit_bytes));
  }
  return length;
}

void check_header(ByteView header) {
  WireReader checksum(header.substr(kFrameHeaderBytes - 4), "a frame header");
  if (checksum.u32() == crc_of(header.substr(0, kFrameHeaderBytes - 4))) return;
  throw Error(ErrorKind::corrupt_data, "the head of a message was damaged on the way: its checksum is wrong");
}

void check_payload(ByteView header, ByteView payload) {
  WireReader checksum(header.substr(4), "a frame header");
  if (checksum.u32() == crc_of(payload)) return;
  throw Error(ErrorKind::corrupt_data,
              fmt::format("a message of {} bytes was damaged on the way: its checksum is wrong", payload.size()));
}

}  // namespace

Bytes frame(ByteView payload, std::size_t limit_bytes) {
  if (payload.size() > limit_bytes) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("a message of {} bytes is over the limit of {}", payload.size(), limit_bytes));
  }
  Bytes out;
  out.reserve(kFrameHeaderBytes + payload.size());
  put_u32(out, static_cast<std::uint32_t>(payload.size()));
  put_u32(out, crc_of(payload));
  put_u32(out, crc_of(out));
  return out.append(payload);
}

void send_frame(int fd, ByteView payload, std::size_t limit_bytes, Deadline deadline) {
  send_all(fd, as_span(ByteView(frame(payload, limit_bytes))), deadline);
}

Bytes recv_frame(int fd, std::size_t limit_bytes, Deadline deadline) {
  Bytes header(kFrameHeaderBytes, '\0');
  recv_all(fd, as_span(header), deadline);
  const std::size_t length = checked_length(header, limit_bytes);
  check_header(header);
  Bytes payload;
  while (payload.size() < length) {
    const std::size_t start = payload.size();
    payload.resize(std::min(length, start + kReceiveStepBytes));
    recv_all(fd, as_span(payload).subspan(start), deadline);
  }
  check_payload(header, payload);
  return payload;
}

std::optional<Bytes> FrameBuffer::next() {
  const ByteView unread = ByteView(buffer_).substr(start_);
  if (unread.size() < sizeof(std::uint32_t)) return std::nullopt;
  const std::size_t length = checked_length(unread, limit_bytes_);
  if (unread.size() < kFrameHeaderBytes) return std::nullopt;
  check_header(unread.substr(0, kFrameHeaderBytes));
  if (unread.size() - kFrameHeaderBytes < length) return std::nullopt;
  Bytes payload(unread.substr(kFrameHeaderBytes, length));
  check_payload(unread.substr(0, kFrameHeaderBytes), payload);
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
