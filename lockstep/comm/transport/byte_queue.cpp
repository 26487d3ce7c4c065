#include "lockstep/comm/transport/byte_queue.h"

#include <algorithm>
#include <cstring>

namespace lockstep::internal {
namespace {

constexpr std::size_t kKeptBytes = std::size_t{256} << 10;

}  // namespace

void ByteQueue::add(ByteSpan bytes) {
  if (begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::size_t ByteQueue::take(MutableByteSpan space) {
  const std::size_t count = std::min(space.size(), size());
  if (count != 0) std::memcpy(space.data(), bytes_.data() + begin_, count);
  begin_ += count;
  if (empty()) clear();
  return count;
}

void ByteQueue::clear() {
  if (bytes_.capacity() > kKeptBytes) bytes_ = {};
  bytes_.clear();
  begin_ = 0;
}

}  // namespace lockstep::internal
