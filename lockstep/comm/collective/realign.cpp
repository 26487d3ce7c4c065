#include "lockstep/comm/collective/realign.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/comm/collective/farewell.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

using Presence = PeerStream::Presence;

// For ranks that have not come yet. The others wait for them no longer than this.
constexpr Duration kPatience = std::chrono::seconds(5);

// One link on its way back.
struct Return {
  Return(const Marker& out, const Marker& in, const CallReport& account)
      : farewell(farewell_of(out, account)), reader(in) {}
  bool is_sent() const { return sent == farewell.size(); }

  std::vector<std::byte> farewell;
  std::size_t sent = 0;
  bool has_begun = false;  // to send
  FarewellReader reader;
  bool has_data = false;  // what came behind their signature is with the reader
};

class Realigner {
 public:
  Realigner(Links& links, Mesh& mesh, Route route)
      : links_(links), mesh_(mesh), route_(route), account_(links.own_report()) {
    const Signature& mine = links.signature();
    for (int peer = 0; peer < links.size(); ++peer) {
      returns_.emplace_back(marker_of(mine.generation, mine.sequence, links.rank(), peer),
                            marker_of(mine.generation, mine.sequence, peer, links.rank()), account_);
    }
  }

  void run(Deadline deadline) {
    std::vector<Mesh::Interest> interests;
    for (;;) {
      interests.clear();
      for (const int peer : links_.peers()) {
        Return& back = returns_[static_cast<std::size_t>(peer)];
        while (send(peer, back) || receive(peer, back)) {
        }
        const Mesh::Interest interest{peer, !back.reader.is_complete(), !back.is_sent()};
        if (interest.readable || interest.writable) interests.push_back(interest);
      }
      if (interests.empty()) return;
      if (deadline.expired()) throw Error(ErrorKind::timeout, "not all ranks have entered a collective");
      mesh_.wait(interests, deadline);
    }
  }

  std::vector<CallSide> sides() const {
    std::vector<CallSide> sides;
    for (int rank = 0; rank < links_.size(); ++rank) {
      const bool is_own = rank == links_.rank();
      sides.push_back({.rank = rank,
                       .who = links_.peer_name(rank),
                       .signature = is_own ? links_.signature() : links_.stream(rank).theirs,
                       .account = is_own ? account_ : returns_[static_cast<std::size_t>(rank)].reader.account()});
    }
    return sides;
  }

 private:
  bool send(int peer, Return& back) {
    // In a tree a message that has been begun is one that others believe: it is brought to its end.
    const PeerStream& stream = links_.stream(peer);
    const bool is_within = route_ == Route::tree && stream.head_sent != 0 && stream.head_sent < stream.head_bytes;
    if (!links_.has_told(peer) || is_within) return links_.send(peer);
    if (back.is_sent()) return false;
    if (!std::exchange(back.has_begun, true)) mesh_.abandon(peer);
    const std::size_t bytes = mesh_.send_some(peer, ByteSpan(back.farewell).subspan(back.sent));
    back.sent += bytes;
    return bytes != 0;
  }

  bool receive(int peer, Return& back) {
    if (back.has_data) {
      const MutableByteSpan space = back.reader.room();
      const std::size_t bytes = space.empty() ? 0 : mesh_.recv_some(peer, space);
      back.reader.take(bytes);
      return bytes != 0;
    }
    const PeerStream& stream = links_.stream(peer);
    const bool has_moved = stream.presence == Presence::unknown && read_signature(peer);
    if (stream.presence == Presence::gone) {
      throw peer_lost({.peer = peer, .name = links_.peer_name(peer), .how = Departure::left}, links_.rank());
    }
    if (stream.presence == Presence::unknown) return has_moved;
    back.has_data = true;
    if (!can_go_on({{links_.rank(), "", links_.signature(), {}}, {peer, "", stream.theirs, {}}})) {
      throw Error(ErrorKind::desync, links_.peer_name(peer) + " made a call from which the group cannot recover");
    }
    // Of their data nothing has been used, so all that came of it still lies where it was received.
    const std::size_t begin = PeerStream::kRowOffset - sizeof(Signature);
    const std::size_t bytes = stream.signature_received + stream.row_received;
    const std::size_t read = back.reader.take_copy(ByteSpan(stream.scratch).subspan(begin, bytes));
    if (read != bytes) throw Error(ErrorKind::corrupt_data, links_.peer_name(peer) + " sent too much data");
    return true;
  }

  bool read_signature(int peer) {
    try {
      // It may have been read before this collective began.
      if (links_.stream(peer).signature_received < sizeof(Signature)) return links_.receive(peer);
      links_.take_signature(peer);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::desync) throw;  // which is why we are here
      return true;
    }
    if (links_.stream(peer).presence != Presence::unknown) return true;
    throw Error(ErrorKind::peer_lost, links_.peer_name(peer) + " is in a later collective");
  }

  Links& links_;
  Mesh& mesh_;
  const Route route_;
  const CallReport account_;
  std::vector<Return> returns_;  // by peer
};

}  // namespace

Realigned realign(Links& links, Mesh& mesh, Route route, Deadline deadline) {
  links.tell_all();
  // From here on no more is read than what belongs here: a peer that has heard this rank may begin the next collective.
  for (PeerStream& each : links.streams()) {
    if (each.presence == Presence::unknown) each.row_window = 0;
  }
  Realigner realigner(links, mesh, route);
  realigner.run(std::min(deadline, Deadline::after(kPatience)));
  std::vector<CallSide> sides = realigner.sides();
  for (PeerStream& each : links.streams()) {
    each.signature_received = 0;
    each.is_expected = true;
  }
  const bool is_aligned = can_go_on(sides);
  return {desync_error(links.rank(), std::move(sides)), is_aligned};
}

std::optional<Error> settle_signatures(Links& links, Mesh& mesh, Deadline deadline, Reading reading) {
  links.tell_all();
  const auto n = static_cast<std::size_t>(links.size());
  std::optional<Error> desync;
  std::vector<bool> told(n), heard(n, reading == Reading::no);
  std::vector<Mesh::Interest> interests;
  for (;;) {
    interests.clear();
    for (const int peer : links.peers()) {
      const auto p = static_cast<std::size_t>(peer);
      try {
        if (!told[p] && !links.has_told(peer)) links.send(peer);
        told[p] = told[p] || links.has_told(peer);
      } catch (const Error&) {
        told[p] = true;  // it cannot be
      }
      try {
        if (!heard[p] && !links.has_heard(peer)) links.receive(peer);
        heard[p] = heard[p] || links.has_heard(peer);
      } catch (const Error& error) {
        heard[p] = true;
        if (error.kind() == ErrorKind::desync && !desync) desync = error;
      }
      if (!told[p] || !heard[p]) interests.push_back({peer, !heard[p], !told[p]});
    }
    if (interests.empty() || deadline.expired()) return desync;
    try {
      mesh.wait(interests, deadline);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer_lost) return desync;
    }
  }
}

}  // namespace lockstep::internal
