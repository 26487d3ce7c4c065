#include "lockstep/comm/transport/checked_stream.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kHeadBytes = sizeof(BlockHead);
static_assert(kHeadBytes == 24);
// Small blocks come several to a call. Of a large one its last piece goes straight to where it is wanted, and the
// pieces before it, since the next call may be for other memory, come here first.
constexpr std::size_t kAheadBytes = std::size_t{8} << 10;
constexpr std::size_t kBufferBytes = kHeadBytes + kMostBlockBytes + kAheadBytes;

template <class Value>
ByteSpan bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

// With its place in the stream, so that a block that is missing or came twice is noticed, too.
std::uint64_t head_sum(const BlockHead& head, std::uint64_t position) {
  return crc32c(bytes_of(head).first(offsetof(BlockHead, head_sum)), crc32c(bytes_of(position)));
}

iovec piece(ByteSpan bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

ssize_t send_both(int fd, ByteSpan first, ByteSpan second) {
  iovec pieces[] = {piece(first), piece(second)};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_both(int fd, MutableByteSpan first, MutableByteSpan second) {
  iovec pieces[] = {piece(first), piece(second)};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  return ::recvmsg(fd, &message, MSG_DONTWAIT);
}

// Whether the kernel has so many bytes for this connection.
bool has_arrived(int fd, std::size_t bytes) {
  int arrived = 0;
  return ::ioctl(fd, FIONREAD, &arrived) == 0 && static_cast<std::size_t>(arrived) >= bytes;
}

ssize_t not_now() {
  errno = EAGAIN;
  return -1;
}

}  // namespace

ssize_t CheckedSender::send(int fd, GroupId group, ByteSpan data) {
  if (is_within_block()) return go_on(fd, data);
  return begin(fd, group, data.first(std::min(data.size(), kMostBlockBytes)));
}

ssize_t CheckedSender::begin(int fd, GroupId group, ByteSpan data) {
  const std::uint32_t data_sum = checksums_ == Checksums::on ? crc32c(data) : 0;
  head_ = {group, static_cast<std::uint32_t>(data.size()), data_sum, 0};
  head_.head_sum = head_sum(head_, position_);
  const ssize_t count = send_both(fd, bytes_of(head_), data);
  if (count < 0) return count;
  position_ += data.size();
  const auto sent = static_cast<std::size_t>(count);
  const std::size_t taken = sent - std::min(sent, kHeadBytes);
  if (taken == data.size()) return static_cast<ssize_t>(taken);
  head_left_ = kHeadBytes - std::min(sent, kHeadBytes);
  rest_.assign(data.begin() + static_cast<std::ptrdiff_t>(taken), data.end());
  rest_sent_ = 0;
  is_untold_ = taken == 0;
  return is_untold_ ? not_now() : static_cast<ssize_t>(taken);
}

ssize_t CheckedSender::go_on(int fd, ByteSpan data) {
  const ByteSpan rest = ByteSpan(rest_).subspan(rest_sent_);
  const ByteSpan shown = rest.first(std::min(rest.size(), data.size()));
  if (is_untold_ && !std::equal(rest.begin(), rest.end(), data.begin(), data.begin() + shown.size())) {
    errno = EPROTO;
    return -1;
  }
  const ssize_t count = send_both(fd, bytes_of(head_).last(head_left_), shown);
  if (count < 0) return count;
  const auto sent = static_cast<std::size_t>(count);
  const std::size_t taken = sent - std::min(sent, head_left_);
  head_left_ -= std::min(sent, head_left_);
  rest_sent_ += taken;
  if (taken == 0) return not_now();
  is_untold_ = false;
  return static_cast<ssize_t>(taken);
}

ssize_t CheckedSender::flush(int fd) {
  is_untold_ = false;
  const ssize_t count = send_both(fd, bytes_of(head_).last(head_left_), rest());
  if (count < 0) return count;
  const std::size_t of_head = std::min(static_cast<std::size_t>(count), head_left_);
  head_left_ -= of_head;
  rest_sent_ += static_cast<std::size_t>(count) - of_head;
  return count - static_cast<ssize_t>(of_head);
}

CheckedReceiver::Found CheckedReceiver::receive(int fd, GroupId group, MutableByteSpan space) {
  if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  for (;;) {
    if (checked_ != 0) return hand_out(group, space);
    if (coming_ != 0) {
      if (checked_group_ == group) return {receive_coming(fd, space), group};
      if (const ssize_t count = fetch_coming(fd); count <= 0) return {count};
      continue;
    }
    std::size_t most = kAheadBytes;
    if (const auto next = head()) {
      if (!is_sound(*next)) throw Error(ErrorKind::corrupt_data, "a header between its bytes is wrong");
      const std::size_t here = held() - kHeadBytes;
      if (checksums_ == Checksums::off) {
        begin_ += kHeadBytes;
        position_ += next->bytes;
        checked_ = std::min<std::size_t>(here, next->bytes);
        coming_ = next->bytes - checked_;
        checked_group_ = next->group;
        continue;
      }
      if (here >= next->bytes) {
        check_data(*next, {buffer_.get() + begin_ + kHeadBytes, next->bytes});
        begin_ += kHeadBytes;
        checked_ = next->bytes;
        checked_group_ = next->group;
        continue;
      }
      if (next->group == group && space.size() >= next->bytes && has_arrived(fd, next->bytes - here)) {
        if (const auto count = receive_directly(fd, *next, space)) return {*count, group};
        continue;
      }
      most += next->bytes - here;
    }
    const ssize_t count = fill(fd, most);
    if (count <= 0) return {count};
  }
}

bool CheckedReceiver::has_data() const {
  if (checked_ != 0 || coming_ != 0) return checked_ != 0;
  const auto next = head();
  if (!next || !is_sound(*next)) return next.has_value();
  const std::size_t here = held() - kHeadBytes;
  return checksums_ == Checksums::on ? here >= next->bytes : here != 0;
}

std::optional<BlockHead> CheckedReceiver::head() const {
  if (held() < kHeadBytes) return std::nullopt;
  BlockHead head;
  std::memcpy(&head, buffer_.get() + begin_, sizeof head);
  return head;
}

bool CheckedReceiver::is_sound(const BlockHead& head) const {
  return head.head_sum == head_sum(head, position_) && head.bytes != 0 && head.bytes <= kMostBlockBytes;
}

void CheckedReceiver::check_data(const BlockHead& head, ByteSpan data) {
  if (crc32c(data) != head.data_sum) {
    throw Error(ErrorKind::corrupt_data, fmt::format("the checksum of {} bytes is wrong", head.bytes));
  }
  position_ += head.bytes;
}

std::optional<ssize_t> CheckedReceiver::receive_directly(int fd, const BlockHead& head, MutableByteSpan space) {
  move_to_front();
  const MutableByteSpan data = space.first(head.bytes);
  const std::size_t here = held() - kHeadBytes;
  std::memcpy(data.data(), buffer_.get() + kHeadBytes, here);
  const MutableByteSpan rest = data.subspan(here);
  const MutableByteSpan behind(buffer_.get() + kHeadBytes + kMostBlockBytes, kAheadBytes);
  const ssize_t count = receive_both(fd, rest, behind);
  if (count <= 0) return count;
  const auto received = static_cast<std::size_t>(count);
  if (received < rest.size()) {
    std::memcpy(buffer_.get() + end_, rest.data(), received);
    end_ += received;
    return std::nullopt;
  }
  check_data(head, data);
  begin_ = 0;
  end_ = received - rest.size();
  std::memcpy(buffer_.get(), behind.data(), end_);
  return static_cast<ssize_t>(head.bytes);
}

ssize_t CheckedReceiver::receive_coming(int fd, MutableByteSpan space) {
  const MutableByteSpan part = space.first(std::min(space.size(), coming_));
  const bool is_last = part.size() == coming_;
  const ssize_t count = receive_both(fd, part, {buffer_.get(), is_last ? kAheadBytes : 0});
  if (count <= 0) return count;
  const std::size_t received = std::min(static_cast<std::size_t>(count), part.size());
  coming_ -= received;
  begin_ = 0;
  end_ = static_cast<std::size_t>(count) - received;
  return static_cast<ssize_t>(received);
}

ssize_t CheckedReceiver::fetch_coming(int fd) {
  const ssize_t count = ::recv(fd, buffer_.get(), coming_, MSG_DONTWAIT);
  if (count <= 0) return count;
  begin_ = 0;
  end_ = checked_ = static_cast<std::size_t>(count);
  coming_ -= checked_;
  return count;
}

void CheckedReceiver::move_to_front() {
  std::memmove(buffer_.get(), buffer_.get() + begin_, held());
  end_ = held();
  begin_ = 0;
}

ssize_t CheckedReceiver::fill(int fd, std::size_t most) {
  if (begin_ == end_ || end_ + most > kBufferBytes) move_to_front();
  const ssize_t count = ::recv(fd, buffer_.get() + end_, most, MSG_DONTWAIT);
  if (count > 0) end_ += static_cast<std::size_t>(count);
  return count;
}

CheckedReceiver::Found CheckedReceiver::hand_out(GroupId group, MutableByteSpan space) {
  Found found{0, checked_group_};
  const ByteSpan here(buffer_.get() + begin_, checked_);
  if (group == checked_group_) {
    found.count = static_cast<ssize_t>(std::min(space.size(), checked_));
    std::memcpy(space.data(), here.data(), static_cast<std::size_t>(found.count));
  } else {
    found.count = static_cast<ssize_t>(checked_);
    found.elsewhere = here;
  }
  begin_ += static_cast<std::size_t>(found.count);
  checked_ -= static_cast<std::size_t>(found.count);
  return found;
}

}  // namespace lockstep::internal
