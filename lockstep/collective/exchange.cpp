#include "lockstep/collective/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

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
// How many float16 or bfloat16 elements are widened at once: few enough for the fastest cache.
constexpr std::size_t kWideElements = 1024;
// A peer that is not there after kFirstLook is asked how it fares, and again every kLookPeriod.
constexpr Duration kFirstLook = std::chrono::milliseconds(100);
constexpr Duration kLookPeriod = std::chrono::milliseconds(250);

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

}  // namespace

Exchange::Exchange(Mesh& mesh, Topology topology, const LinkTuning& tuning)
    : mesh_(mesh),
      topology_(std::move(topology)),
      tuning_(tuning),
      rank_(mesh.rank()),
      size_(mesh.size()),
      links_(static_cast<std::size_t>(size_)) {
  interests_.reserve(links_.size());
  rows_.reserve(links_.size() + 1);
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
  plan_ = plan_chunks(collective, rank_, topology_, tuning_);
  element_ = element_size(collective.dtype);
  carry_element_ = is_half(collective.dtype) ? sizeof(float) : element_;
  chunk_elements_ = tuning_.chunk_bytes / element_;
  window_elements_ = chunk_elements_ * tuning_.window_chunks;
  to_reduce_ = plan_.own.bytes() / element_;
  reduced_ = 0;
  const std::span<const Segment> operand = plan_.in_place ? collective.output : collective.input;
  const std::size_t payload = plan_.whole ? collective.count * element_ : 0;
  header_.resize(sizeof signature + payload);
  std::memcpy(header_.data(), &signature, sizeof signature);
  gather_bytes(operand, 0, header_.data() + sizeof signature, payload);
  signatures_missing_ = size_ - 1;
  next_look_ = {};
  has_warned_ = false;
  own_ = SegmentCursor(operand, plan_.own.begin);
  result_ = SegmentCursor(collective.output, plan_.result.begin);
  if (plan_.carried_to >= 0) carry_.resize(std::min(to_reduce_, window_elements_) * carry_element_);
  for (int step = 1; step < size_; ++step) begin_link(peer_at(step));
  if (size_ == 1) copy_own_part();
}

void Exchange::begin_link(int peer) {
  Link& link = this->link(peer);
  plan_link(*collective_, rank_, topology_, peer, tuning_, link.plan);
  link.header_sent = 0;
  link.operand = SegmentCursor(plan_.in_place ? collective_->output : collective_->input, link.plan.send_operand.begin);
  link.operand_left = plan_.whole ? 0 : link.plan.send_operand.bytes();
  link.carry_bytes = peer == plan_.carried_to ? to_reduce_ * carry_element_ : 0;
  link.carry_sent = 0;
  link.result_memory.clear();
  link.result_bytes = link.result_sent = 0;
  for (const Passed& passed : link.plan.send_results) {
    append_range(collective_->output, passed.range.begin, passed.range.bytes(), link.result_memory);
    link.result_bytes += passed.range.bytes();
  }
  link.result = SegmentCursor(link.result_memory);
  const bool is_row = peer >= plan_.first_row && peer < plan_.end_row;
  link.row_element = is_row ? element_ : carry_element_;
  link.row_bytes = is_row || peer == plan_.carried_from ? to_reduce_ * link.row_element : 0;
  link.signature_received = link.row_received = 0;
  const std::size_t scratch_bytes = kRowsOffset + std::min(link.row_bytes, window_bytes(link.row_element));
  if (link.scratch.size() < scratch_bytes) link.scratch.resize(scratch_bytes);
  link.output_memory.clear();
  link.output_bytes = link.output_received = 0;
  for (const ByteRange& range : link.plan.receive) {
    append_range(collective_->output, range.begin, range.bytes(), link.output_memory);
    link.output_bytes += range.bytes();
  }
  link.output = SegmentCursor(link.output_memory);
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
  if (link.carry_sent < link.carry_bytes) {
    const std::size_t at = link.carry_sent % window_bytes(carry_element_);
    const std::size_t there = reduced_ * carry_element_ - link.carry_sent;
    return ByteSpan(carry_).subspan(at, std::min(there, carry_.size() - at));
  }
  const std::size_t ready = result_ready(link) - link.result_sent;
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
  } else if (link.carry_sent < link.carry_bytes) {
    link.carry_sent += bytes;
  } else {
    link.result.advance(bytes);
    link.result_sent += bytes;
  }
  return bytes != 0;
}

MutableByteSpan Exchange::next_to_receive(Link& link) const {
  const MutableByteSpan scratch(link.scratch);
  const std::size_t window = window_bytes(link.row_element);
  if (link.signature_received < sizeof(Signature)) {
    // The first rows lie behind the signature, so that one call can fetch both.
    const std::size_t begin = kSignatureOffset + link.signature_received;
    return scratch.subspan(begin, kRowsOffset + std::min(link.row_bytes, window) - begin);
  }
  if (link.row_received < link.row_bytes) {
    const std::size_t at = link.row_received % window;
    const std::size_t limit = std::min(link.row_bytes, reduced_ * link.row_element + window);
    return scratch.subspan(kRowsOffset + at, std::min(window - at, limit - link.row_received));
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
  } else if (link.row_received < link.row_bytes) {
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
  if (reduced_ == to_reduce_ || signatures_missing_ != 0) return false;
  std::size_t limit = to_reduce_;
  for (int step = 1; step < size_; ++step) {
    const Link& each = link(peer_at(step));
    if (each.row_bytes != 0) limit = std::min(limit, each.row_received / each.row_element);
  }
  if (plan_.carried_to >= 0) {
    limit = std::min(limit, link(plan_.carried_to).carry_sent / carry_element_ + window_elements_);
  }
  const std::size_t before = reduced_;
  while (reduced_ < to_reduce_) {
    const std::size_t count = std::min(chunk_elements_, to_reduce_ - reduced_);
    if (reduced_ + count > limit) break;
    reduce_chunk(count);
  }
  return reduced_ != before;
}

void Exchange::reduce_chunk(std::size_t count) {
  while (count != 0) {
    const bool carries = plan_.carried_to >= 0;
    const std::size_t at = reduced_ % window_elements_;
    std::size_t run = std::min(count, own_.run() / element_);
    if (!carries) run = std::min(run, result_.run() / element_);
    const bool is_wide = is_half(collective_->dtype) && (carries || plan_.carried_from >= 0);
    if (is_wide) run = std::min(run, kWideElements);
    std::byte* const output = carries ? carry_.data() + at * carry_element_ : result_.data();
    is_wide ? reduce_wide(at, output, run) : reduce_run(at, output, run);
    own_.advance(run * element_);
    if (!carries) result_.advance(run * element_);
    reduced_ += run;
    count -= run;
  }
}

// `at`: where the window's next element is.
void Exchange::reduce_run(std::size_t at, std::byte* output, std::size_t count) {
  rows_.clear();
  const auto row = [&](int peer) { return link(peer).scratch.data() + kRowsOffset + at * link(peer).row_element; };
  if (plan_.carried_from >= 0) rows_.push_back(row(plan_.carried_from));
  for (int peer = plan_.first_row; peer < plan_.end_row; ++peer) {
    rows_.push_back(peer == rank_ ? own_.data() : row(peer));
  }
  if (collective_->order == Order::tree) return reduce_all(*collective_, {&output, 1}, rows_, count);
  const bool divides_later = plan_.carried_to >= 0 && collective_->reduce == ReduceOp::avg;
  reduce_rows({&output, 1}, rows_, count, collective_->dtype, divides_later ? ReduceOp::sum : collective_->reduce,
              size_);
}

// The same for float16 and bfloat16 whose partial results are float32.
void Exchange::reduce_wide(std::size_t at, std::byte* output, std::size_t count) {
  const DType dtype = collective_->dtype;
  const auto n = static_cast<std::size_t>(plan_.end_row - plan_.first_row);
  wide_.resize((n + 1) * kWideElements);
  rows_.clear();
  if (plan_.carried_from >= 0) {
    rows_.push_back(link(plan_.carried_from).scratch.data() + kRowsOffset + at * carry_element_);
  }
  for (std::size_t i = 0; i < n; ++i) {
    const int peer = plan_.first_row + static_cast<int>(i);
    float* const widened = wide_.data() + i * kWideElements;
    widen(peer == rank_ ? own_.data() : link(peer).scratch.data() + kRowsOffset + at * element_, widened, count, dtype);
    rows_.push_back(reinterpret_cast<const std::byte*>(widened));
  }
  const bool carries = plan_.carried_to >= 0;
  float* const last = wide_.data() + n * kWideElements;
  std::byte* const sum = carries ? output : reinterpret_cast<std::byte*>(last);
  const bool divides_later = carries && collective_->reduce == ReduceOp::avg;
  reduce_rows({&sum, 1}, rows_, count, DType::f32, divides_later ? ReduceOp::sum : collective_->reduce, size_);
  if (!carries) narrow(last, output, count, dtype);
}

std::size_t Exchange::result_ready(const Link& link) const {
  std::size_t ready = 0;
  for (const Passed& passed : link.plan.send_results) {
    const std::size_t bytes = arrived(passed);
    ready += bytes;
    if (bytes < passed.range.bytes()) break;
  }
  return ready;
}

std::size_t Exchange::arrived(const Passed& passed) const {
  if (passed.source == kReducedHere) return reduced_ * element_;
  if (passed.source == rank_) return passed.range.bytes();
  const Link& source = link(passed.source);
  std::size_t before = 0;
  for (const ByteRange& range : source.plan.receive) {
    if (range.begin == passed.range.begin) break;
    before += range.bytes();
  }
  return std::min(passed.range.bytes(), source.output_received - std::min(before, source.output_received));
}

bool Exchange::sent(const Link& link) const {
  return link.header_sent == header_.size() && link.operand_left == 0 && link.carry_sent == link.carry_bytes &&
         link.result_sent == link.result_bytes;
}

bool Exchange::received(const Link& link) const {
  return link.signature_received == sizeof(Signature) && link.row_received == link.row_bytes &&
         link.output_received == link.output_bytes;
}

bool Exchange::finished() const {
  if (reduced_ != to_reduce_) return false;
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
                     each.row_bytes + each.output_bytes);
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
