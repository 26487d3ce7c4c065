// What an Exchange does once ranks are known to differ: it finds out what all of them came with, and brings the links
// to where the next collective can begin.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/collective/exchange.h"
#include "lockstep/collective/farewell.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

// For ranks that have not come yet. Whoever waits for them has long had its error otherwise.
constexpr Duration kPatience = std::chrono::seconds(5);

}  // namespace

// One link on its way back.
struct Exchange::Return {
  Return(const Marker& out, const Marker& in, const CallReport& account)
      : farewell(farewell_of(out, account)), reader(in) {}
  bool is_sent() const { return sent == farewell.size(); }

  std::vector<std::byte> farewell;
  std::size_t sent = 0;
  FarewellReader reader;
  bool is_heard = false;  // their signature, and what came behind it
};

CallReport Exchange::own_report() const {
  CallReport account;
  if (signature_.name != 0) account.name = noted_name(signature_.name);
  if (failure_note_ != nullptr) account.failure = failure_note_->text();
  return account;
}

Error Exchange::realign(Deadline deadline) {
  tell_all();
  // From here on no more is read than what belongs here: who has heard this rank may begin the next collective.
  for (Link& link : links_) {
    if (!link.is_known) link.row_window = 0;
  }
  std::vector<Return> returns;
  const CallReport mine = own_report();
  for (int peer = 0; peer < size_; ++peer) {
    returns.emplace_back(marker_of(signature_.generation, signature_.sequence, rank_, peer),
                         marker_of(signature_.generation, signature_.sequence, peer, rank_), mine);
  }
  deadline = std::min(deadline, Deadline::after(kPatience));
  for (;;) {
    interests_.clear();
    for (int step = 1; step < size_; ++step) {
      const int peer = peer_at(step);
      Return& back = returns[static_cast<std::size_t>(peer)];
      while (send_back(peer, back) || receive_back(peer, back)) {
      }
      const Mesh::Interest interest{peer, !back.reader.is_complete(), !back.is_sent()};
      if (interest.readable || interest.writable) interests_.push_back(interest);
    }
    if (interests_.empty()) break;
    if (deadline.expired()) throw Error(ErrorKind::timeout, "the ranks have not all come");
    mesh_.wait(interests_, deadline);
  }
  std::vector<CallSide> sides;
  for (int rank = 0; rank < size_; ++rank) {
    const Return& back = returns[static_cast<std::size_t>(rank)];
    const bool is_own = rank == rank_;
    sides.push_back({.rank = rank,
                     .who = mesh_.peer_name(rank),
                     .signature = is_own ? signature_ : link(rank).theirs,
                     .account = is_own ? mine : back.reader.account()});
  }
  for (Link& link : links_) {
    link.signature_received = 0;
    link.is_expected = true;
  }
  is_aligned_ = can_go_on(sides);
  return desync_error(rank_, std::move(sides));
}

bool Exchange::send_back(int peer, Return& back) {
  // In a tree a message that has been begun is one that others believe: it is brought to its end.
  const bool is_within =
      plan_.in_tree && link(peer).header_sent != 0 && link(peer).header_sent < link(peer).header_bytes;
  if (!is_told(peer) || is_within) return send(peer);
  if (back.is_sent()) return false;
  const std::size_t bytes = mesh_.send_some(peer, ByteSpan(back.farewell).subspan(back.sent));
  back.sent += bytes;
  return bytes != 0;
}

bool Exchange::receive_back(int peer, Return& back) {
  if (back.is_heard) {
    const MutableByteSpan space = back.reader.room();
    const std::size_t bytes = space.empty() ? 0 : mesh_.recv_some(peer, space);
    back.reader.take(bytes);
    return bytes != 0;
  }
  Link& link = this->link(peer);
  bool has_moved = false;
  try {
    if (!link.is_known) {
      // It may have been read before this collective began.
      const bool is_read = link.signature_received == sizeof(Signature);
      if (is_read) take_signature(peer);
      if (is_read && !link.is_known) throw Error(ErrorKind::peer_lost, mesh_.peer_name(peer) + " is ahead");
      has_moved = is_read || receive(peer);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::desync) throw;  // which is why we are here
    has_moved = true;
  }
  if (link.presence == Presence::gone) {
    throw peer_lost({.peer = peer, .name = mesh_.peer_name(peer), .how = Departure::left}, rank_);
  }
  if (!link.is_known) return has_moved;
  back.is_heard = true;
  if (!can_go_on({{rank_, "", signature_, {}}, {peer, "", link.theirs, {}}})) {
    throw Error(ErrorKind::desync, mesh_.peer_name(peer) + " makes a call that no other one can follow");
  }
  // Of their data nothing has been used, so all that came of it still lies where it was received.
  const std::size_t begin = kRowsOffset - sizeof(Signature), bytes = link.signature_received + link.row_received;
  const std::size_t read = back.reader.take_copy(ByteSpan(link.scratch).subspan(begin, bytes));
  if (read != bytes) throw Error(ErrorKind::corrupt_data, mesh_.peer_name(peer) + " sends too much");
  return true;
}

}  // namespace lockstep
