#include "lockstep/collective/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/piece.h"
#include "lockstep/collective/reduce.h"

namespace lockstep {
namespace {

constexpr std::size_t kRowsOffset = 64;
constexpr std::size_t kSignatureOffset = kRowsOffset - sizeof(Signature);
// How long a rank that has seen a desync tries to tell the others.
constexpr Duration kFarewell = std::chrono::seconds(1);
// How long a rank that lost a peer waits for signatures that may explain it.
constexpr Duration kGrace = std::chrono::milliseconds(100);
// A peer that is not there after kFirstLook is asked how it fares, and again every kLookPeriod.
constexpr Duration kFirstLook = std::chrono::milliseconds(100);
constexpr Duration kLookPeriod = std::chrono::milliseconds(250);

}  // namespace

Exchange::Exchange(Mesh& mesh, const LinkTuning& tuning)
    : mesh_(mesh),
      tuning_(tuning),
      window_bytes_(tuning.chunk_bytes * tuning.window_chunks),
      rank_(mesh.rank()),
      size_(mesh.size()),
      links_(static_cast<std::size_t>(size_)),
      rows_(links_.size()) {
  interests_.reserve(links_.size());
  for (Link& link : links_) link.scratch.resize(kRowsOffset);
}

void Exchange::run(const Collective& collective, const Signature& signature, Deadline deadline) {
  begin(collective, signature);
  try {
    mesh_.wait({}, deadline);
    move_all(deadline);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::desync) {
      settle_signatures(std::min(deadline, Deadline::after(kFarewell)), Looking::no);
    }
    if (error.kind() == ErrorKind::peer_lost) {
      // A rank that saw a desync before this one may have left because of it.
      if (const auto desync = settle_signatures(Deadline::after(kGrace), Looking::yes)) throw Error(*desync);
    }
    throw;
  }
}

void Exchange::begin(const Collective& collective, const Signature& signature) {
  collective_ = &collective;
  previous_ = signature_;
  signature_ = signature;
  plan_ = plan_chunks(collective, rank_, size_, tuning_);
  const std::span<const Segment> operand = plan_.in_place ? collective.output : collective.input;
  const std::size_t payload = plan_.whole ? collective.count * element_size(collective.dtype) : 0;
  header_.resize(sizeof signature + payload);
  std::memcpy(header_.data(), &signature, sizeof signature);
  gather_bytes(operand, 0, header_.data() + sizeof signature, payload);
  signatures_missing_ = size_ - 1;
  reduced_ = 0;
  next_look_ = {};
  has_warned_ = false;
  own_ = SegmentCursor(operand, plan_.own.begin);
  result_ = SegmentCursor(collective.output, plan_.result.begin);
  for (int step = 1; step < size_; ++step) begin_link(peer_at(step));
  if (size_ == 1) copy_own_part();
}

void Exchange::begin_link(int peer) {
  Link& link = this->link(peer);
  const LinkPlan plan = plan_link(*collective_, rank_, size_, peer, tuning_);
  link.header_sent = 0;
  link.operand = SegmentCursor(plan_.in_place ? collective_->output : collective_->input, plan.send_operand.begin);
  link.operand_left = plan_.whole ? 0 : plan.send_operand.bytes();
  link.result = SegmentCursor(collective_->output, plan.send_result.begin);
  link.result_sent = 0;
  link.result_bytes = plan.send_result.bytes();
  const std::size_t scratch_bytes = kRowsOffset + std::min(plan_.row_bytes, window_bytes_);
  if (link.scratch.size() < scratch_bytes) link.scratch.resize(scratch_bytes);
  link.signature_received = 0;
  link.row_received = 0;
  link.output = SegmentCursor(collective_->output, plan.receive.begin);
  link.output_received = 0;
  link.output_bytes = plan.receive.bytes();
}

void Exchange::move_all(Deadline deadline) {
  while (!finished()) {
    bool moved = false;
    for (int step = 1; step < size_; ++step) {
      // Each rank starts with its neighbour, so that not all send to the same one.
      moved |= send(peer_at(step));
      moved |= receive(peer_at(step));
    }
    moved |= reduce_ready();
    if (!moved) wait(deadline);
  }
}

ByteSpan Exchange::next_to_send(const Link& link) const {
  if (link.header_sent < header_.size()) return ByteSpan(header_).subspan(link.header_sent);
  if (link.operand_left != 0) return {link.operand.data(), std::min(link.operand.run(), link.operand_left)};
  const std::size_t ready = std::min(link.result_bytes, result_ready()) - link.result_sent;
  if (ready != 0) return {link.result.data(), std::min(link.result.run(), ready)};
  return {};
}

bool Exchange::send(int peer) {
  Link& link = this->link(peer);
  const ByteSpan data = next_to_send(link);
  if (data.empty()) return false;
  const std::size_t bytes = mesh_.send_some(peer, data);
  if (link.header_sent < header_.size()) {
    link.header_sent += bytes;
  } else if (link.operand_left != 0) {
    link.operand.advance(bytes);
    link.operand_left -= bytes;
  } else {
    link.result.advance(bytes);
    link.result_sent += bytes;
  }
  return bytes != 0;
}

MutableByteSpan Exchange::next_to_receive(Link& link) const {
  const MutableByteSpan scratch(link.scratch);
  if (link.signature_received < sizeof(Signature)) {
    // The first rows lie behind the signature, so that one call can fetch both.
    const std::size_t begin = kSignatureOffset + link.signature_received;
    return scratch.subspan(begin, kRowsOffset + std::min(plan_.row_bytes, window_bytes_) - begin);
  }
  if (link.row_received < plan_.row_bytes) {
    const std::size_t at = link.row_received % window_bytes_;
    const std::size_t limit = std::min(plan_.row_bytes, reduced_ + window_bytes_);
    return scratch.subspan(kRowsOffset + at, std::min(window_bytes_ - at, limit - link.row_received));
  }
  if (link.output_received < link.output_bytes && signatures_missing_ == 0) {
    return {link.output.data(), std::min(link.output.run(), link.output_bytes - link.output_received)};
  }
  return {};
}

bool Exchange::receive(int peer) {
  Link& link = this->link(peer);
  const MutableByteSpan space = next_to_receive(link);
  if (space.empty()) return false;
  std::size_t bytes = mesh_.recv_some(peer, space);
  const bool moved = bytes != 0;
  if (link.signature_received < sizeof(Signature)) {
    const std::size_t head = std::min(bytes, sizeof(Signature) - link.signature_received);
    link.signature_received += head;
    link.row_received += bytes - head;
    if (link.signature_received == sizeof(Signature)) take_signature(peer);
  } else if (link.row_received < plan_.row_bytes) {
    link.row_received += bytes;
  } else {
    link.output.advance(bytes);
    link.output_received += bytes;
  }
  return moved;
}

void Exchange::take_signature(int peer) {
  Signature theirs;
  std::memcpy(&theirs, link(peer).scratch.data() + kSignatureOffset, sizeof theirs);
  if (theirs != signature_) throw desync_error(rank_, signature_, peer, theirs);
  if (--signatures_missing_ == 0) copy_own_part();
}

void Exchange::copy_own_part() {
  const Collective& collective = *collective_;
  if (!consists_of_pieces(collective.kind)) return;
  const Piece own = piece_of(collective, size_, rank_, rank_);
  copy_bytes(SegmentCursor(collective.input, own.input_offset), SegmentCursor(collective.output, own.output_offset),
             own.bytes);
}

bool Exchange::reduce_ready() {
  if (reduced_ == plan_.row_bytes || signatures_missing_ != 0) return false;
  std::size_t arrived = plan_.row_bytes;
  for (int step = 1; step < size_; ++step) arrived = std::min(arrived, link(peer_at(step)).row_received);
  const std::size_t before = reduced_;
  while (reduced_ < plan_.row_bytes) {
    const std::size_t bytes = std::min(tuning_.chunk_bytes, plan_.row_bytes - reduced_);
    if (reduced_ + bytes > arrived) break;
    reduce_chunk(bytes);
    reduced_ += bytes;
  }
  return reduced_ != before;
}

void Exchange::reduce_chunk(std::size_t bytes) {
  const std::size_t element = element_size(collective_->dtype);
  std::size_t at = kRowsOffset + reduced_ % window_bytes_;
  for (std::size_t left = bytes; left != 0;) {
    const std::size_t run = std::min({left, own_.run(), result_.run()});
    for (int peer = 0; peer < size_; ++peer) {
      rows_[static_cast<std::size_t>(peer)] = peer == rank_ ? own_.data() : link(peer).scratch.data() + at;
    }
    std::byte* output = result_.data();
    reduce_rows({&output, 1}, rows_, run / element, collective_->dtype, collective_->reduce, size_);
    own_.advance(run);
    result_.advance(run);
    at += run;
    left -= run;
  }
}

std::size_t Exchange::result_ready() const {
  if (collective_->kind == OpKind::broadcast)
    return rank_ == collective_->root ? 0 : link(collective_->root).output_received;
  return reduced_;
}

bool Exchange::sent(const Link& link) const {
  return link.header_sent == header_.size() && link.operand_left == 0 && link.result_sent == link.result_bytes;
}

bool Exchange::received(const Link& link) const {
  return link.signature_received == sizeof(Signature) && link.row_received == plan_.row_bytes &&
         link.output_received == link.output_bytes;
}

bool Exchange::finished() const {
  if (reduced_ != plan_.row_bytes) return false;
  for (int step = 1; step < size_; ++step) {
    const Link& each = link(peer_at(step));
    if (!sent(each) || !received(each)) return false;
  }
  return true;
}

void Exchange::wait(Deadline deadline) {
  // A peer that sends a byte now and then never lets the mesh's own wait time out.
  const TimePoint now = steady_clock().now();
  if (deadline.expired(now)) throw Error(ErrorKind::timeout, "the deadline has passed");
  interests_.clear();
  for (int step = 1; step < size_; ++step) {
    const int peer = peer_at(step);
    const Mesh::Interest interest{peer, !next_to_receive(link(peer)).empty(), !next_to_send(link(peer)).empty()};
    if (interest.readable || interest.writable) interests_.push_back(interest);
  }
  if (lookout_ == nullptr) return mesh_.wait(interests_, deadline);
  if (next_look_ == TimePoint{}) next_look_ = now + kFirstLook;
  if (now >= next_look_) look(now);
  try {
    mesh_.wait(interests_, std::min(deadline, Deadline::at(next_look_)));
  } catch (const Error& error) {
    const bool is_own = error.kind() == ErrorKind::timeout && error.detail().peer < 0;
    if (!is_own || deadline.expired()) throw;
  }
}

void Exchange::look(TimePoint now) {
  next_look_ = now + kLookPeriod;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || (sent(link(peer)) && received(link(peer)))) continue;
    const Sighting sighting = lookout_->sighting(peer);
    lookout_->ask(peer);
    if (has_warned_ || sighting.silent < kSilence) continue;
    has_warned_ = true;
    log_warning(fmt::format("{} waits: {} {}; {}", describe(signature_), mesh_.peer_name(peer), hold_up(peer),
                            sighting.text()));
  }
}

std::optional<Error> Exchange::settle_signatures(Deadline deadline, Looking looking) {
  std::optional<Error> desync;
  std::vector<bool> deaf(links_.size()), mute(links_.size(), looking == Looking::no);
  for (;;) {
    interests_.clear();
    for (int step = 1; step < size_; ++step) {
      const int peer = peer_at(step);
      const auto p = static_cast<std::size_t>(peer);
      try {
        if (!deaf[p] && link(peer).header_sent < sizeof(Signature)) send(peer);
        deaf[p] = deaf[p] || link(peer).header_sent >= sizeof(Signature);
      } catch (const Error&) {
        deaf[p] = true;
      }
      try {
        if (!mute[p] && link(peer).signature_received < sizeof(Signature)) receive(peer);
        mute[p] = mute[p] || link(peer).signature_received == sizeof(Signature);
      } catch (const Error& error) {
        mute[p] = true;
        if (error.kind() == ErrorKind::desync && !desync) desync = error;
      }
      if (!deaf[p] || !mute[p]) interests_.push_back({peer, !mute[p], !deaf[p]});
    }
    if (interests_.empty() || deadline.expired()) return desync;
    try {
      mesh_.wait(interests_, deadline);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer_lost) return desync;
    }
  }
}

std::string Exchange::hold_up(int peer) const {
  const Link& each = link(peer);
  if (each.signature_received < sizeof(Signature)) return "has not come to it";
  if (received(each)) return "does not take the data sent to it";
  return fmt::format("has sent {} of {} bytes", each.row_received + each.output_received,
                     plan_.row_bytes + each.output_bytes);
}

Exchange::Missing Exchange::missing() const {
  struct Culprit {
    int blame = 0;
    int rank = -1;
    std::string text;
  };
  std::vector<Culprit> culprits;
  int most = 0;
  for (int peer = 0; peer < size_; ++peer) {
    const Link& each = link(peer);
    if (peer == rank_ || (sent(each) && received(each))) continue;
    Sighting sighting = lookout_ == nullptr ? Sighting() : lookout_->sighting(peer);
    const bool is_absent = each.signature_received < sizeof(Signature);
    const bool is_silent = sighting.silent != Duration::zero();
    const int blame = is_silent ? 2 : is_absent ? 1 : 0;
    most = std::max(most, blame);
    // Who has not come to this one has at least sent all it had to send in the one before; an old answer tells less.
    if (is_absent && previous_.sequence != 0 && (is_silent || sighting.place.empty())) {
      sighting.place = "last seen in " + describe(previous_);
    }
    const char* colon = sighting.text().empty() ? "" : ": ";
    std::string text = mesh_.peer_name(peer) + " " + hold_up(peer) + colon + sighting.text();
    culprits.push_back({blame, peer, std::move(text)});
  }
  std::ranges::stable_sort(culprits, std::greater{}, &Culprit::blame);
  // Those who came may well be waiting for those who did not.
  if (most > 0) std::erase_if(culprits, [](const Culprit& each) { return each.blame == 0; });
  Missing missing;
  for (const Culprit& each : culprits) missing.text += (missing.text.empty() ? "" : "; ") + each.text;
  if (!culprits.empty()) missing.first = culprits.front().rank;
  return missing;
}

}  // namespace lockstep
