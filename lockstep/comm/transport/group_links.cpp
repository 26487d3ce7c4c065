#include "lockstep/comm/transport/group_links.h"

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

int GroupLinks::rank_of(int peer) const {
  for (std::size_t each = 0; each < by_rank.size(); ++each) {
    if (by_rank[each] != nullptr && by_rank[each]->peer == peer) return static_cast<int>(each);
  }
  return -1;
}

bool GroupLinks::awaits(int peer, bool Mesh::Interest::*what) const {
  return std::ranges::any_of(interests, [&](const Mesh::Interest& each) {
    const GroupStream* stream = by_rank[static_cast<std::size_t>(each.peer)];
    return each.*what && stream != nullptr && stream->peer == peer;
  });
}

}  // namespace lockstep::internal
