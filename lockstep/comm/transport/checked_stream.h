// A checked stream carries bytes over one connection in blocks with a checksum, so that nothing that was damaged on its
// way is taken for data. TcpMesh -> CheckedSender -> connection -> CheckedReceiver -> TcpMesh.
//   block = group, bytes of data, CRC-32C of the data, CRC-32C of these and of where the block is in the stream | data
// Groups share a connection: each has a separate stream of whole blocks.
// TCP's checksum has 16 bits, and network cards compute it, so it misses damage before the data reach the card.
// One thread at a time; nothing here blocks.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/transport/checksums.h"

namespace lockstep::internal {

// Whose stream data belong to, of the groups that share a connection. The same on all ranks.
using GroupId = std::uint64_t;

struct BlockHead {
  GroupId group = 0;
  std::uint32_t bytes = 0;
  std::uint32_t data_sum = 0;  // 0 without checksums
  std::uint64_t head_sum = 0;  // of 32 bits
};
inline constexpr std::size_t kMostBlockBytes = std::size_t{128} << 10;  // of data

class CheckedSender {
 public:
  explicit CheckedSender(Checksums checksums) : checksums_(checksums) {}

  // As ::send() without blocking: how many bytes of the data are on their way, or -1 and errno. A block's data are
  // fixed when it begins: until its end the following calls must pass the rest of the same data. If they pass other
  // data although nothing was taken yet, the stream is lost: EPROTO.
  // REQUIRES: no block of another group is under way.
  ssize_t send(int fd, GroupId group, ByteSpan data);
  // The block that is under way; its group, and what is left of its data.
  bool is_within_block() const { return head_left_ != 0 || rest_sent_ != rest_.size(); }
  GroupId group() const { return head_.group; }
  std::size_t block_bytes() const { return head_.bytes; }
  // Sends the part of the block that the connection takes, for any group: how many bytes of its data, the first of
  // which lie at rest(); or -1 and errno.
  ByteSpan rest() const { return ByteSpan(rest_).subspan(rest_sent_); }
  ssize_t flush(int fd);

 private:
  ssize_t begin(int fd, GroupId group, ByteSpan data);
  ssize_t go_on(int fd, ByteSpan data);

  const Checksums checksums_;
  std::uint64_t position_ = 0;  // of the next block
  // Of a block of which the connection has not taken all.
  BlockHead head_;
  std::size_t head_left_ = 0;
  std::vector<std::byte> rest_;
  std::size_t rest_sent_ = 0;
  bool is_untold_ = false;  // the caller does not know yet that it has begun
};

class CheckedReceiver {
 public:
  explicit CheckedReceiver(Checksums checksums) : checksums_(checksums) {}

  // What receive() has found next. Bytes of another group than the one asked for lie in the receiver's memory, until
  // the next call.
  struct Found {
    ssize_t count = 0;  // 0 at the end of the stream; -1 and errno
    GroupId group = 0;
    ByteSpan elsewhere = {};
  };
  // As ::recv() without blocking, into `space` if the next bytes are the group's. The rest of `space` may
  // be overwritten. Error{corrupt_data} if a block was damaged; then there are no more calls.
  // Without checksums parts of blocks are given as they come.
  Found receive(int fd, GroupId group, MutableByteSpan space);
  // Whether receive() gives something without asking the connection.
  bool has_data() const;

 private:
  std::optional<BlockHead> head() const;
  bool is_sound(const BlockHead& head) const;
  void check_data(const BlockHead& head, ByteSpan data);
  Found hand_out(GroupId group, MutableByteSpan space);
  // As receive(), for a block of which the rest has arrived and which `space` can hold; nothing if that was not all.
  std::optional<ssize_t> receive_directly(int fd, const BlockHead& head, MutableByteSpan space);
  // Without checksums: of a block of which this group, or another one, has got the beginning.
  ssize_t receive_coming(int fd, MutableByteSpan space);
  ssize_t fetch_coming(int fd);
  void move_to_front();
  ssize_t fill(int fd, std::size_t most);
  std::size_t held() const { return end_ - begin_; }

  const Checksums checksums_;
  std::uint64_t position_ = 0;  // of the next block
  std::unique_ptr<std::byte[]> buffer_;
  // What was received and not handed out: `checked_` bytes of data, then a block or the beginning of one.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t checked_ = 0;
  std::size_t coming_ = 0;  // of the same block; nothing lies after the part that is here
  GroupId checked_group_ = 0;
};

}  // namespace lockstep::internal
