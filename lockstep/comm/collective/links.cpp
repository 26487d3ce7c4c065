#include "lockstep/comm/collective/links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/collective/announced_calls.h"

namespace lockstep::internal {

Links::Links(Mesh& mesh)
    : mesh_(mesh),
      rank_(mesh.rank()),
      size_(mesh.size()),
      streams_(static_cast<std::size_t>(size_)),
      announced_(static_cast<std::size_t>(size_)) {
  signature_.check = check_of(signature_);  // may be announced before the first collective
}

void Links::begin(const Collective& collective, const Signature& signature, Executor& executor) {
  previous_ = signature_;
  signature_ = signature;
  has_announced_ = false;
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

ByteSpan Links::next_to_send(const PeerStream& stream) const {
  if (stream.head_sent < stream.head.size()) return stream.head.subspan(stream.head_sent);
  if (stream.head_sent < stream.head_bytes || stream.send.is_done()) return {};
  return executor_->next_of_range(stream);
}

bool Links::send(int peer) {
  PeerStream& stream = this->stream(peer);
  const ByteSpan data = next_to_send(stream);
  if (data.empty()) return false;
  const std::size_t bytes = mesh_.send_some(peer, data);
  if (stream.head_sent < stream.head.size()) {
    stream.head_sent += bytes;
  } else {
    stream.send.advance(bytes);
  }
  return bytes != 0;
}

MutableByteSpan Links::next_to_receive(PeerStream& stream) const {
  if (!stream.is_expected || differ()) return {};
  // One call fetches the signature and the row's first bytes after it.
  if (stream.signature_received < sizeof(Signature)) return stream.signature_space();
  if (stream.row_received < stream.row_bytes) return stream.row_space();
  return has_compared() && !stream.receive.is_done() ? stream.output_space() : MutableByteSpan();
}

bool Links::receive(int peer) {
  PeerStream& stream = this->stream(peer);
  const MutableByteSpan space = next_to_receive(stream);
  if (space.empty()) return false;
  const std::size_t bytes = mesh_.recv_some(peer, space);
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
  const std::size_t there = stream.signature_received + bytes;
  stream.signature_received = std::min(there, sizeof(Signature));
  stream.row_received = there - stream.signature_received;
  if (stream.signature_received == sizeof(Signature)) take_signature(peer);
}

void Links::take_signature(int peer) {
  Signature theirs;
  std::memcpy(&theirs, stream(peer).signature(), sizeof theirs);
  if (theirs.check != check_of(theirs)) {
    throw Error(ErrorKind::corrupt_data, fmt::format("the signature from {} was damaged on its way", peer_name(peer)),
                {.rank = rank_, .peer = peer});
  }
  if (compare(peer, theirs)) --signatures_missing_;
}

bool Links::compare(int peer, const Signature& theirs) {
  PeerStream& stream = this->stream(peer);
  stream.theirs = theirs;
  const bool is_same = agrees(peer, theirs);
  stream.presence = is_same ? Presence::come : Presence::differs;
  if (!is_same && !differ()) differs_ = peer;
  return is_same;
}

void Links::announce() {
  has_announced_ = true;
  std::vector<CallSide> calls{own_side()};
  if (differ()) calls.push_back({differs_, "", stream(differs_).theirs, stream(differs_).report});
  mesh_.announce(encode_calls(calls));
}

void Links::take_announcements() {
  while (const auto next = mesh_.take_announcement()) {
    std::vector<CallSide>& calls = announced_[static_cast<std::size_t>(next->from)];
    if (calls.empty()) ++unread_;
    calls = decode_calls(next->bytes, next->from, size_);
    if (calls.front().rank != next->from)
      throw_corrupt({"announcement", next->from}, "it names another rank as its sender");
  }
  for (std::size_t peer = 0; unread_ != 0 && peer < announced_.size(); ++peer) {
    if (announced_[peer].empty() || announced_[peer].front().signature.sequence > signature_.sequence) continue;
    --unread_;
    take_calls(std::exchange(announced_[peer], {}));
  }
}

void Links::take_calls(const std::vector<CallSide>& calls) {
  const bool is_of_difference = calls.size() > 1;
  PeerStream& sender = stream(calls.front().rank);
  sender.failure = calls.front().account.failure;
  sender.failed_after = calls.front().signature.sequence;
  // What a rank announced while it waited in an earlier collective is of no use.
  if (!is_of_difference && calls.front().signature.sequence < signature_.sequence) return;
  const int from = calls.front().rank;
  if (is_of_difference) stream(from).has_reported = true;
  for (const CallSide& call : calls) {
    if (call.rank == rank_) continue;
    compare(call.rank, call.signature);
    // A rank knows more about its own call than others do.
    const bool is_news = call.rank == from || !stream(call.rank).has_reported;
    if (is_news && (is_of_difference || differ())) stream(call.rank).report = call.account;
  }
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

CallSide Links::own_side() const {
  CallSide side{rank_, peer_name(rank_), signature_, {}};
  if (signature_.name != 0) side.account.name = noted_name(signature_.name);
  if (failure_note_ != nullptr) side.account.failure = failure_note_->text();
  return side;
}

std::string Links::failure_of(int peer) const {
  const PeerStream& each = stream(peer);
  if (each.failure.empty() || each.failed_after + 1 < signature_.sequence) return {};
  return fmt::format("; before that, {} failed in {}", peer_name(peer), each.failure);
}

std::vector<CallSide> Links::sides() const {
  std::vector<CallSide> sides{own_side()};
  for (int peer = 0; peer < size_; ++peer) {
    const PeerStream& each = stream(peer);
    if (each.presence != Presence::unknown) sides.push_back({peer, peer_name(peer), each.theirs, each.report});
  }
  return sides;
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

}  // namespace lockstep::internal
