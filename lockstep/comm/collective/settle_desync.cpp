#include "lockstep/comm/collective/settle_desync.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr Duration kPatience = std::chrono::seconds(1);
constexpr std::size_t kDiscardedBytes = std::size_t{16} << 10;

class Settlement {
 public:
  Settlement(Links& links, Mesh& mesh)
      : links_(links), mesh_(mesh), has_left_(static_cast<std::size_t>(links.size())) {}

  // Until all that are there have announced their calls, or the mesh has ended.
  void await_all(Deadline deadline) {
    std::vector<Mesh::Interest> interests;
    try {
      for (;;) {
        links_.take_announcements();
        interests.clear();
        for (int peer = 0; peer < links_.size(); ++peer) {
          if (is_awaited(peer) && discard(peer)) interests.push_back({peer, true, false, false});
        }
        if (interests.empty() || deadline.expired()) break;
        wait(interests, deadline);
      }
      links_.take_announcements();  // a peer may have announced its call and left
    } catch (const Error& error) {  // the mesh has ended
      ended_ = error;
      take_last();
    }
  }

  bool is_complete() const {
    for (int peer = 0; peer < links_.size(); ++peer) {
      if (is_awaited(peer)) return false;
    }
    return true;
  }

  Error error() const {
    const Error known = desync_error(links_.rank(), links_.sides());
    return Error(known.kind(), known.what() + missing(), known.detail());
  }

 private:
  bool is_awaited(int peer) const { return peer != links_.rank() && !links_.stream(peer).has_reported; }

  // Data of a collective that does not take place. Whether the peer is still there.
  bool discard(int peer) {
    const auto p = static_cast<std::size_t>(peer);
    std::array<std::byte, kDiscardedBytes> discarded;
    try {
      while (!has_left_[p] && mesh_.recv_some(peer, discarded) != 0) continue;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer_lost) throw;
      has_left_[p] = true;
    }
    return !has_left_[p];
  }

  void wait(const std::vector<Mesh::Interest>& interests, Deadline deadline) {
    try {
      mesh_.wait(interests, deadline);
    } catch (const Error& error) {
      const bool is_late = error.kind() == ErrorKind::timeout && error.detail().peer < 0;
      if (error.kind() != ErrorKind::peer_lost && !is_late) throw;
    }
  }

  // What had arrived when another rank ended the mesh.
  void take_last() {
    try {
      links_.take_announcements();
    } catch (const Error&) {  // damaged: the mesh's error is reported
    }
  }

  std::string missing() const {
    std::string text;
    for (int peer = 0; peer < links_.size(); ++peer) {
      if (peer == links_.rank() || links_.stream(peer).presence != PeerStream::Presence::unknown) continue;
      const bool left = has_left_[static_cast<std::size_t>(peer)];
      const char* const state = left     ? "has left the group"
                                : ended_ ? "had announced no call when the group ended"
                                         : "has not entered a collective";
      text += fmt::format("; {} {}{}", links_.peer_name(peer), state, left ? links_.failure_of(peer) : "");
    }
    if (!text.empty() && ended_) text += fmt::format("; it ended by: {}", ended_->what());
    return text;
  }

  Links& links_;
  Mesh& mesh_;
  std::vector<bool> has_left_;  // by rank
  std::optional<Error> ended_;  // why the mesh ended meanwhile
};

}  // namespace

Error settle_desync(Links& links, Mesh& mesh, Deadline deadline) {
  links.announce();
  Settlement settlement(links, mesh);
  settlement.await_all(std::min(deadline, Deadline::after(kPatience)));
  Error error = settlement.error();
  if (!settlement.is_complete()) mesh.abort(error);
  return error;
}

}  // namespace lockstep::internal
