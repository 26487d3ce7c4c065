#include "lockstep/comm/health/local_peers.h"

#include <utility>

namespace lockstep::internal {

LocalPeers::LocalPeers(LocalPeerList peers) : peers_(std::move(peers)), ended_(peers_->size()) {
  for (const LocalPeer& each : *peers_) watched_.push_back({each.process.fd(), POLLIN, 0});
}

void LocalPeers::look() {
  ::poll(watched_.data(), watched_.size(), 0);
  for (std::size_t rank = 0; rank < watched_.size(); ++rank) {
    pollfd& watched = watched_[rank];
    if (watched.fd >= 0 && watched.revents != 0) watched.fd = -1;
    if (watched.fd < 0 && !ended_[rank]) ended_[rank] = (*peers_)[rank].process.has_ended();
  }
}

}  // namespace lockstep::internal
