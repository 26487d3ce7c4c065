#include "lockstep/comm/collective/links.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/collective/farewell.h"

namespace lockstep::internal {
namespace {

// What `move` moves, or nothing if the peer has left. For peers of which nothing is needed: they may be done.
template <class Move>
std::optional<std::size_t> unless_lost(Move move) {
  try {
    return move();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer_lost) throw;
    return std::nullopt;
  }
}

}  // namespace

Links::Links(Mesh& mesh, bool has_trees)
    : mesh_(mesh),
      rank_(mesh.rank()),
      size_(mesh.size()),
      has_trees_(has_trees),
      streams_(static_cast<std::size_t>(size_)) {}

void Links::begin(const Collective& collective, const Signature& signature, Executor& executor) {
  previous_ = signature_;
  signature_ = announcement_ = signature;
  announcement_.check = ~signature.check;
  has_told_all_ = false;
  executor_ = &executor;
  for (PeerStream& each : streams_) each.clear();
  executor.begin(collective, signature);
  signatures_missing_ = 0;
  peers_.clear();
  for (int step = 1; step < size_; ++step) {
    const PeerStream& each = stream(peer_at(step));
    if (each.is_expected) ++signatures_missing_;
    if (each.is_expected || each.head_bytes != 0) peers_.push_back(peer_at(step));
  }
}

void Links::take_early_signatures() {
  for (int step = 1; step < size_; ++step) {
    if (stream(peer_at(step)).signature_received == sizeof(Signature)) take_signature(peer_at(step));
  }
}

void Links::tell_all() {
  has_told_all_ = true;
  peers_.clear();
  for (int step = 1; step < size_; ++step) peers_.push_back(peer_at(step));
}

bool Links::is_to_announce(const PeerStream& stream) const {
  if (stream.announced != 0) return stream.announced < sizeof(Signature);
  return has_told_all_ && stream.head_sent == 0 && stream.head.empty();
}

ByteSpan Links::next_to_send(const PeerStream& stream) const {
  if (is_to_announce(stream)) return std::as_bytes(std::span(&announcement_, 1)).subspan(stream.announced);
  if (stream.head_sent < stream.head.size()) return stream.head.subspan(stream.head_sent);
  if (stream.head_sent < stream.head_bytes || stream.send.is_done()) return {};
  return executor_->next_of_range(stream);
}

bool Links::send(int peer) {
  PeerStream& stream = this->stream(peer);
  const ByteSpan data = next_to_send(stream);
  if (data.empty()) return false;
  const auto move = [&] { return mesh_.send_some(peer, data); };
  const bool is_announcement = is_to_announce(stream);
  // A peer that has left need not be told any more.
  const std::size_t bytes = stream.head_bytes != 0 ? move() : unless_lost(move).value_or(data.size());
  if (is_announcement) {
    stream.announced += bytes;
  } else if (stream.head_sent < stream.head.size()) {
    stream.head_sent += bytes;
  } else {
    stream.send.advance(bytes);
  }
  return bytes != 0;
}

MutableByteSpan Links::next_to_receive(PeerStream& stream) const {
  if (!stream.is_expected && (!has_told_all_ || stream.presence == Presence::gone)) return {};
  // One call fetches the signature and the row's first bytes behind it.
  if (stream.signature_received < sizeof(Signature)) return stream.signature_space();
  if (stream.row_received < stream.row_bytes) return stream.row_space();
  return has_compared() && !stream.receive.is_done() ? stream.output_space() : MutableByteSpan();
}

bool Links::receive(int peer) {
  PeerStream& stream = this->stream(peer);
  const MutableByteSpan space = next_to_receive(stream);
  if (space.empty()) return false;
  const auto move = [&] { return mesh_.recv_some(peer, space); };
  const std::optional<std::size_t> moved = stream.is_expected ? move() : unless_lost(move);
  if (!moved) stream.presence = Presence::gone;
  const std::size_t bytes = moved.value_or(0);
  if (stream.signature_received < sizeof(Signature)) {
    take_head(peer, bytes);
  } else if (stream.row_received < stream.row_bytes) {
    stream.row_received += bytes;
  } else {
    stream.receive.advance(bytes);
  }
  return bytes != 0;
}

void Links::take_head(int peer, std::size_t bytes) {
  PeerStream& stream = this->stream(peer);
  std::byte* const head = stream.signature();
  std::size_t there = stream.signature_received + bytes;
  const auto drop_signature = [&] {
    there -= sizeof(Signature);
    std::memmove(head, head + sizeof(Signature), there);
  };
  for (;;) {
    while (there >= sizeof(Signature) && is_stale(head)) drop_signature();
    stream.signature_received = std::min(there, sizeof(Signature));
    stream.row_received = there - stream.signature_received;
    if (stream.signature_received < sizeof(Signature)) return;
    take_signature(peer);
    if (stream.signature_received != 0) return;
    drop_signature();  // it was announced only; what follows may be the message
  }
}

bool Links::is_stale(const std::byte* signature) const {
  if (!has_trees_) return false;
  Signature theirs;
  std::memcpy(&theirs, signature, sizeof theirs);
  const std::uint32_t check = check_of(theirs);
  return theirs.sequence < signature_.sequence && (theirs.check == check || theirs.check == ~check);
}

void Links::take_signature(int peer) {
  PeerStream& stream = this->stream(peer);
  Signature theirs;
  std::memcpy(&theirs, stream.signature(), sizeof theirs);
  const std::uint32_t check = check_of(theirs);
  const bool is_announced = theirs.check == ~check;
  if (!is_announced && theirs.check != check) throw no_signature(peer);
  theirs.check = check;
  // A peer that has finished this collective may show the signature of the next.
  if (!stream.is_expected && theirs.sequence > signature_.sequence) return;
  stream.theirs = theirs;
  stream.presence = Presence::differs;
  if (!agrees(peer, theirs)) throw difference_with(peer, theirs);
  stream.presence = Presence::come;
  if (is_announced || !stream.is_expected) {
    stream.signature_received = 0;
  } else {
    --signatures_missing_;
  }
}

// What stands where a signature should.
Error Links::no_signature(int peer) const {
  const Marker marker = marker_of(signature_.generation, signature_.sequence, peer, rank_);
  const std::byte* const head = stream(peer).row() - sizeof(Signature);
  const ErrorDetail detail{.rank = rank_, .peer = peer};
  if (std::equal(marker.begin(), marker.end(), head)) {
    return Error(ErrorKind::desync, fmt::format("{} and others are in different collectives", peer_name(peer)), detail);
  }
  return Error(ErrorKind::corrupt_data, fmt::format("the signature from {} was damaged on its way", peer_name(peer)),
               detail);
}

bool Links::agrees(int peer, const Signature& theirs) {
  // The check covers the line, too.
  Signature mine = signature_;
  if (theirs.line != mine.line && call_sites_ != CallSites::must_match) {
    mine.line = theirs.line;
    mine.check = check_of(mine);
    if (call_sites_ == CallSites::warn && !has_warned_of_line_ && theirs == mine && is_other_line(theirs, signature_)) {
      has_warned_of_line_ = true;
      log_warning(describe_other_line(peer_name(peer), theirs, signature_));
    }
  }
  return theirs == mine && theirs.line == mine.line;
}

Error Links::difference_with(int peer, const Signature& theirs) const {
  return desync_error(rank_,
                      {{rank_, peer_name(rank_), signature_, own_report()}, {peer, peer_name(peer), theirs, {}}});
}

CallReport Links::own_report() const {
  CallReport account;
  if (signature_.name != 0) account.name = noted_name(signature_.name);
  if (failure_note_ != nullptr) account.failure = failure_note_->text();
  return account;
}

bool Links::is_done() const {
  return std::ranges::all_of(peers_, [this](int peer) { return stream(peer).is_sent() && stream(peer).is_received(); });
}

void Links::list_interests(std::vector<Mesh::Interest>& interests) {
  interests.clear();
  for (const int peer : peers_) {
    const Mesh::Interest interest{peer, !next_to_receive(stream(peer)).empty(), can_send(peer)};
    if (interest.readable || interest.writable) interests.push_back(interest);
  }
}

bool Links::has_told(int peer) const {
  const PeerStream& each = stream(peer);
  return each.head_sent >= sizeof(Signature) || each.announced == sizeof(Signature);
}

bool Links::has_heard(int peer) const {
  // A signature that cannot be compared, as it differs or is of a later collective, has been read all the same.
  return stream(peer).presence != Presence::unknown || stream(peer).signature_received == sizeof(Signature);
}

}  // namespace lockstep::internal
