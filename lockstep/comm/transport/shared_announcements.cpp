// The announcements of groups over shared connections. Where not all ranks are connected, ranks that wait pass them on.
#include <exception>
#include <utility>

#include "lockstep/comm/transport/shared_links.h"

namespace lockstep::internal {

void SharedLinks::announce(GroupLinks& group, ByteView bytes) noexcept {
  try {
    tell_all(group, group.announce(bytes));
  } catch (const std::exception&) {  // no memory: to its peers this rank has announced nothing
  }
}

void SharedLinks::tell_all(const GroupLinks& group, ByteView message) {
  for (const GroupStream* const stream : group.by_rank) {
    if (stream == nullptr) continue;
    TcpPeer& peer = this->peer(stream->peer);
    const PeerLock lock(*this, peer);
    peer.send_control(message);
  }
}

std::optional<Announcement> SharedLinks::take_announcement(GroupLinks& group) {
  std::optional<GroupLinks::Heard> heard = group.take_announcement();
  if (!heard) return std::nullopt;
  if (!is_complete_) tell_all(group, heard->message);
  return Announcement{heard->rank, std::move(heard->bytes)};
}

}  // namespace lockstep::internal
