// A checked stream carries bytes over one connection in blocks with a checksum, so that nothing that was damaged on its
// way is taken for data. TcpMesh -> CheckedSender -> connection -> CheckedReceiver -> TcpMesh.
//   block = bytes of data, CRC-32C of the data, CRC-32C of these two and of where the block is in the stream | data
// TCP's own checksum has 16 bits, and network cards compute it, which see nothing of what happens in front of them.
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

namespace lockstep {

struct BlockHead {
  std::uint32_t bytes = 0;
  std::uint32_t data_sum = 0;
  std::uint32_t head_sum = 0;
};
inline constexpr std::size_t kMostBlockBytes = std::size_t{128} << 10;  // of data

class CheckedSender {
 public:
  // As ::send() without blocking: how many bytes of the data are on their way, or -1 and errno. What is sent is settled
  // when a block begins: until its end the calls that follow are to show what is left of the same data. If they show
  // something else though nothing was taken yet, the stream is lost: EPROTO.
  ssize_t send(int fd, ByteSpan data);

 private:
  ssize_t begin(int fd, ByteSpan data);
  ssize_t go_on(int fd, ByteSpan data);

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
  // As ::recv() without blocking: how many bytes are in `space`, 0 at the end of the stream, or -1 and errno. What is
  // behind those bytes in `space` is lost. Error{corrupt_data} if a block was damaged; then there are no more calls.
  ssize_t receive(int fd, MutableByteSpan space);
  // Whether receive() gives something without asking the connection.
  bool has_data() const;

 private:
  std::optional<BlockHead> head() const;
  bool is_sound(const BlockHead& head) const;
  void check_data(const BlockHead& head, ByteSpan data);
  ssize_t hand_out(MutableByteSpan space);
  // As receive(), for a block of which the rest has arrived and which `space` can hold; nothing if that was not all.
  std::optional<ssize_t> receive_directly(int fd, const BlockHead& head, MutableByteSpan space);
  void move_to_front();
  ssize_t fill(int fd, std::size_t most);
  std::size_t held() const { return end_ - begin_; }

  std::uint64_t position_ = 0;  // of the next block
  std::unique_ptr<std::byte[]> buffer_;
  // What was received and not handed out: `checked_` bytes of data, then a block or the beginning of one.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t checked_ = 0;
};

}  // namespace lockstep
