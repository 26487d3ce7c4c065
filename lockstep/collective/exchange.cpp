#include "lockstep/collective/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/farewell.h"
#include "lockstep/collective/piece.h"
#include "lockstep/collective/reduce.h"

namespace lockstep {
namespace {

// How long a rank that has seen a desync tries to tell the others.
constexpr Duration kFarewell = std::chrono::seconds(1);
// How long a rank that lost a peer waits for signatures that may explain it.
constexpr Duration kGrace = std::chrono::milliseconds(100);
// How many float16 or bfloat16 elements are widened at once: few enough for the fastest cache.
constexpr std::size_t kWideElements = 1024;

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

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
    if (error.kind() == ErrorKind::desync) throw_difference(error, deadline);
    if (error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted) {
      // A rank that saw a desync before this one may have left, or ended the group, because of it.
      if (const auto desync = settle_signatures(Deadline::after(kGrace), Looking::yes)) throw Error(*desync);
    }
    throw;
  }
}

void Exchange::throw_difference(const Error& seen, Deadline deadline) {
  if (after_mismatch_ == AfterMismatch::stay_failed) {
    settle_signatures(std::min(deadline, Deadline::after(kFarewell)), Looking::no);
    throw Error(seen);
  }
  std::optional<Error> whole;
  try {
    whole = realign(deadline);
  } catch (const Error& error) {  // some rank does not come, or has gone
    const Error last(ErrorKind::desync, fmt::format("{}; the group cannot go on: {}", seen.what(), error.what()),
                     seen.detail());
    mesh_.abort(last);
    throw Error(last);
  }
  throw Error(*whole);
}

void Exchange::begin(const Collective& collective, const Signature& signature) {
  collective_ = &collective;
  previous_ = signature_;
  signature_ = signature;
  plan_chunks(collective, rank_, topology_, tuning_, plan_);
  begin_reduction();
  const std::span<const Segment> operand = plan_.in_place ? collective.output : collective.input;
  const std::size_t payload = plan_.whole ? data_bytes(collective) : 0;
  header_.resize(sizeof signature + payload);
  std::memcpy(header_.data(), &signature, sizeof signature);
  gather_bytes(operand, 0, header_.data() + sizeof signature, payload);
  header_there_ = header_.size();
  signatures_missing_ = plan_.in_tree ? 0 : size_ - 1;
  announcement_ = signature;
  announcement_.check = ~signature.check;
  next_look_ = {};
  is_aligned_ = false;
  has_warned_ = has_told_all_ = false;
  for (int step = 1; step < size_; ++step) begin_link(peer_at(step));
  std::size_t at = 0;
  for (const Delivery& each : deliveries_) {
    const std::size_t end = at + each.bytes / element_ * given_element_;
    if (each.to != rank_) {
      link(each.to).carry_begin = link(each.to).carry_sent = at;
      link(each.to).carry_end = end;
    }
    at = end;
  }
  if (plan_.in_tree) begin_tree();
  peers_.clear();
  for (int step = 1; step < size_; ++step) {
    const Link& each = link(peer_at(step));
    if (each.is_expected || each.header_bytes != 0) peers_.push_back(peer_at(step));
  }
  if (size_ == 1) copy_own_part();
}

void Exchange::begin_reduction() {
  const Collective& collective = *collective_;
  element_ = element_size(collective.dtype);
  carry_element_ = is_half(collective.dtype) ? sizeof(float) : element_;
  given_element_ = plan_.carried_to >= 0 ? carry_element_ : element_;
  chunk_elements_ = tuning_.chunk_bytes / element_;
  window_elements_ = chunk_elements_ * tuning_.window_chunks;
  to_reduce_ = bytes_of(plan_.own) / element_;
  reduced_ = 0;
  own_memory_.clear();
  for (const ByteRange& range : plan_.own) {
    append_range(plan_.in_place ? collective.output : collective.input, range.begin, range.bytes(), own_memory_);
  }
  own_ = SegmentCursor(own_memory_);
  result_ = SegmentCursor(collective.output, plan_.result.begin);
  deliveries_ = plan_.deliveries;
  if (deliveries_.empty())
    deliveries_.push_back({to_reduce_ * element_, plan_.carried_to >= 0 ? plan_.carried_to : rank_});
  const bool gives = std::ranges::any_of(deliveries_, [this](const Delivery& each) { return each.to != rank_; });
  if (gives) carry_.resize(std::min(to_reduce_, window_elements_) * given_element_);
}

void Exchange::begin_link(int peer) {
  Link& link = this->link(peer);
  plan_link(*collective_, rank_, topology_, peer, tuning_, link.plan);
  // What has been read of the signature that is next is kept.
  if (link.is_expected) link.signature_received = 0;
  link.presence = Presence::unknown;
  link.is_expected = !plan_.in_tree;
  link.is_answer = false;
  link.header_bytes = plan_.in_tree ? 0 : header_.size();
  link.header_sent = link.announced = 0;
  link.is_known = false;
  link.operand_memory.clear();
  link.operand_left = plan_.whole ? 0 : bytes_of(link.plan.send_operand);
  for (const ByteRange& range : link.plan.send_operand) {
    if (plan_.whole) break;
    append_range(plan_.in_place ? collective_->output : collective_->input, range.begin, range.bytes(),
                 link.operand_memory);
  }
  link.operand = SegmentCursor(link.operand_memory);
  link.carry_begin = link.carry_end = link.carry_sent = 0;
  link.result_memory.clear();
  link.result_bytes = link.result_sent = 0;
  for (const Passed& passed : link.plan.send_results) {
    append_range(collective_->output, passed.range.begin, passed.range.bytes(), link.result_memory);
    link.result_bytes += passed.range.bytes();
  }
  link.result = SegmentCursor(link.result_memory);
  const bool is_row = peer >= plan_.first_row && peer < plan_.end_row;
  link.row_element = is_row ? element_ : carry_element_;
  const bool has_row = !plan_.in_tree && (is_row || peer == plan_.carried_from);
  expect_row(link, has_row ? to_reduce_ * link.row_element : 0, window_bytes(link.row_element));
  link.output_memory.clear();
  link.output_bytes = link.output_received = 0;
  for (const ByteRange& range : link.plan.receive) {
    append_range(collective_->output, range.begin, range.bytes(), link.output_memory);
    link.output_bytes += range.bytes();
  }
  link.output = SegmentCursor(link.output_memory);
}

void Exchange::expect_row(Link& link, std::size_t bytes, std::size_t window) {
  link.row_bytes = bytes;
  link.row_window = std::min(bytes, window);
  link.row_received = 0;
  const std::size_t scratch_bytes = kRowsOffset + link.row_window;
  if (link.scratch.size() < scratch_bytes) link.scratch.resize(scratch_bytes);
}

void Exchange::begin_tree() {
  const Collective& collective = *collective_;
  plan_tree(collective, rank_, topology_, tree_);
  header_.resize(sizeof(Signature) + (rank_ == tree_.leader ? tree_.bundle_bytes : tree_.row_bytes));
  header_there_ = sizeof(Signature) + tree_.row_bytes;
  joined_ = 0;
  is_concluded_ = false;
  for (const TreeMessage& each : tree_.send) link(each.peer).header_bytes = sizeof(Signature) + each.bytes;
  const bool has_result = answers_with_result(collective.kind);
  for (const TreeMessage& each : tree_.answers) {
    link(each.peer).header_bytes = sizeof(Signature) + each.bytes;
    link(each.peer).is_answer = has_result;
  }
  if (has_result) {
    answer_.resize(header_there_);
    std::memcpy(answer_.data(), &signature_, sizeof(Signature));
  }
  for (const TreeMessage& each : tree_.receive) {
    Link& from = link(each.peer);
    from.is_expected = true;
    from.row_element = 1;
    expect_row(from, each.bytes, each.bytes);
    ++signatures_missing_;
  }
}

void Exchange::move_all(Deadline deadline) {
  for (int step = 1; step < size_; ++step) {
    if (link(peer_at(step)).signature_received == sizeof(Signature)) take_signature(peer_at(step));
  }
  while (!finished()) {
    bool moved = false;
    for (const int peer : peers_) {
      moved |= send(peer);
      moved |= receive(peer);
    }
    moved |= join_rows();
    moved |= reduce_ready();
    moved |= conclude_tree();
    if (!moved) wait(deadline);
  }
}

// A message goes out in one piece, once all of it is there: what begins as one is one.
std::size_t Exchange::header_ready(const Link& link) const {
  const bool is_there = link.is_answer ? is_concluded_ : header_there_ >= link.header_bytes;
  return is_there ? link.header_bytes : 0;
}

bool Exchange::is_to_announce(const Link& link) const {
  if (link.announced != 0) return link.announced < sizeof(Signature);
  return plan_.in_tree && has_told_all_ && link.header_sent == 0 && header_ready(link) == 0;
}

ByteSpan Exchange::next_to_send(const Link& link) const {
  if (is_to_announce(link)) return std::as_bytes(std::span(&announcement_, 1)).subspan(link.announced);
  if (const std::size_t there = header_ready(link); link.header_sent < there) {
    return ByteSpan(link.is_answer ? answer_ : header_).subspan(link.header_sent, there - link.header_sent);
  }
  if (link.header_sent < link.header_bytes) return {};
  if (link.operand_left != 0) return {link.operand.data(), std::min(link.operand.run(), link.operand_left)};
  if (link.carry_sent < link.carry_end) {
    const std::size_t at = link.carry_sent % window_bytes(given_element_);
    const std::size_t there = std::min(reduced_ * given_element_, link.carry_end);
    return ByteSpan(carry_).subspan(at,
                                    std::min(std::max(there, link.carry_sent) - link.carry_sent, carry_.size() - at));
  }
  const std::size_t ready = result_ready(link) - link.result_sent;
  if (ready != 0) return {link.result.data(), std::min(link.result.run(), ready)};
  return {};
}

bool Exchange::send(int peer) {
  Link& link = this->link(peer);
  const ByteSpan data = next_to_send(link);
  if (data.empty()) return false;
  const bool is_announcement = is_to_announce(link), is_head = link.header_sent < header_ready(link);
  const auto move = [&] { return mesh_.send_some(peer, data); };
  // Who has left need not be told any more.
  const std::size_t bytes = link.header_bytes != 0 ? move() : unless_lost(move).value_or(data.size());
  if (is_announcement) {
    link.announced += bytes;
  } else if (is_head) {
    link.header_sent += bytes;
  } else if (link.operand_left != 0) {
    link.operand.advance(bytes);
    link.operand_left -= bytes;
  } else if (link.carry_sent < link.carry_end) {
    link.carry_sent += bytes;
  } else {
    link.result.advance(bytes);
    link.result_sent += bytes;
  }
  return bytes != 0;
}

MutableByteSpan Exchange::next_to_receive(Link& link) const {
  const MutableByteSpan scratch(link.scratch);
  if (!link.is_expected && (!has_told_all_ || link.presence == Presence::gone)) return {};
  if (link.signature_received < sizeof(Signature)) {
    // The first rows lie behind the signature, so that one call can fetch both.
    const std::size_t begin = kRowsOffset - sizeof(Signature) + link.signature_received;
    return scratch.subspan(begin, kRowsOffset + link.row_window - begin);
  }
  if (link.row_received < link.row_bytes) {
    const std::size_t window = link.row_window;
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
  const auto move = [&] { return mesh_.recv_some(peer, space); };
  const std::optional<std::size_t> moved = link.is_expected ? move() : unless_lost(move);
  if (!moved) link.presence = Presence::gone;
  const std::size_t bytes = moved.value_or(0);
  if (link.signature_received < sizeof(Signature)) {
    take_head(peer, bytes);
  } else if (link.row_received < link.row_bytes) {
    link.row_received += bytes;
  } else {
    link.output.advance(bytes);
    link.output_received += bytes;
  }
  return bytes != 0;
}

void Exchange::take_head(int peer, std::size_t bytes) {
  Link& link = this->link(peer);
  std::byte* const head = link.scratch.data() + kRowsOffset - sizeof(Signature);
  std::size_t there = link.signature_received + bytes;
  for (;;) {
    while (there >= sizeof(Signature) && is_bygone(head)) {
      there -= sizeof(Signature);
      std::memmove(head, head + sizeof(Signature), there);
    }
    link.signature_received = std::min(there, sizeof(Signature));
    link.row_received = there - link.signature_received;
    if (link.signature_received < sizeof(Signature)) return;
    take_signature(peer);
    if (link.signature_received != 0) return;
    // It was announced only; what follows may be the message.
    there -= sizeof(Signature);
    std::memmove(head, head + sizeof(Signature), there);
  }
}

bool Exchange::is_bygone(const std::byte* signature) const {
  if (!has_trees(topology_, tuning_)) return false;
  Signature theirs;
  std::memcpy(&theirs, signature, sizeof theirs);
  const std::uint32_t check = check_of(theirs);
  return theirs.sequence < signature_.sequence && (theirs.check == check || theirs.check == ~check);
}

void Exchange::take_signature(int peer) {
  Link& link = this->link(peer);
  Signature theirs;
  std::memcpy(&theirs, link.scratch.data() + kRowsOffset - sizeof theirs, sizeof theirs);
  const std::uint32_t check = check_of(theirs);
  const bool is_announced = theirs.check == ~check;
  if (!is_announced && theirs.check != check) throw no_signature(peer);
  theirs.check = check;
  // A peer that has finished this collective may show the signature of the next.
  if (!link.is_expected && theirs.sequence > signature_.sequence) return;
  link.theirs = theirs;
  link.is_known = true;
  if (!agrees(peer, theirs)) throw difference_with(peer, theirs);
  link.presence = Presence::come;
  if (is_announced || !link.is_expected) {
    link.signature_received = 0;
  } else if (--signatures_missing_ == 0 && !plan_.in_tree) {
    copy_own_part();
  }
}

// What stands where a signature should.
Error Exchange::no_signature(int peer) const {
  const Marker marker = marker_of(signature_.generation, signature_.sequence, peer, rank_);
  const std::byte* const head = link(peer).scratch.data() + kRowsOffset - sizeof(Signature);
  const ErrorDetail detail{.rank = rank_, .peer = peer};
  if (std::equal(marker.begin(), marker.end(), head)) {
    return Error(ErrorKind::desync, fmt::format("{} and others are in different collectives", mesh_.peer_name(peer)),
                 detail);
  }
  return Error(ErrorKind::corrupt_data,
               fmt::format("what {} said of its collective was damaged on its way", mesh_.peer_name(peer)), detail);
}

bool Exchange::agrees(int peer, const Signature& theirs) {
  // The check is of the line, too.
  Signature mine = signature_;
  if (theirs.line != mine.line && call_sites_ != CallSites::must_match) {
    mine.line = theirs.line;
    mine.check = check_of(mine);
    if (call_sites_ == CallSites::warn && !has_warned_of_line_ && theirs == mine && is_other_line(theirs, signature_)) {
      has_warned_of_line_ = true;
      log_warning(describe_other_line(mesh_.peer_name(peer), theirs, signature_));
    }
  }
  return theirs == mine && theirs.line == mine.line;
}

Error Exchange::difference_with(int peer, const Signature& theirs) const {
  return desync_error(
      rank_, {{rank_, mesh_.peer_name(rank_), signature_, own_report()}, {peer, mesh_.peer_name(peer), theirs, {}}});
}

void Exchange::copy_own_part() {
  const Collective& collective = *collective_;
  if (!traits_of(collective.kind).moves_pieces()) return;
  const Piece own = piece_of(collective, size_, rank_, rank_);
  copy_bytes(SegmentCursor(collective.input, own.input_offset), SegmentCursor(collective.output, own.output_offset),
             own.bytes);
}

bool Exchange::join_rows() {
  if (!plan_.in_tree) return false;
  const std::size_t before = joined_;
  for (; joined_ < tree_.receive.size(); ++joined_) {
    const Link& next = link(tree_.receive[joined_].peer);
    if (!received(next)) break;
    if (rank_ != tree_.leader) continue;
    std::memcpy(header_.data() + header_there_, next.scratch.data() + kRowsOffset, next.row_bytes);
    header_there_ += next.row_bytes;
  }
  return joined_ != before;
}

bool Exchange::conclude_tree() {
  if (!plan_.in_tree || is_concluded_ || joined_ < tree_.receive.size() || reduced_ < to_reduce_) return false;
  is_concluded_ = true;
  const Collective& collective = *collective_;
  const std::size_t bytes = data_bytes(collective);
  switch (collective.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      if (to_reduce_ != 0) {
        gather_bytes(collective.output, 0, answer_.data() + sizeof(Signature), bytes);
      } else if (rank_ != tree_.leader && (collective.kind == OpKind::all_reduce || rank_ == collective.root)) {
        scatter_bytes(bundle(), collective.output, 0, bytes);
      }
      break;
    case OpKind::broadcast:
      if (rank_ != collective.root) scatter_bytes(row(collective.root), collective.output, 0, bytes);
      break;
    case OpKind::all_gather:
      for (int rank = 0; rank < size_; ++rank) {
        scatter_bytes(row(rank), collective.output, bytes * static_cast<std::size_t>(rank), bytes);
      }
      break;
    default: break;
  }
  return true;
}

const std::byte* Exchange::bundle() const {
  if (rank_ == tree_.leader) return header_.data() + sizeof(Signature);
  return link(tree_.leader).scratch.data() + kRowsOffset;
}

const std::byte* Exchange::row(int rank) const {
  if (plan_.in_tree) return bundle() + tree_.row_at[static_cast<std::size_t>(rank)] + reduced_ * element_;
  if (rank == rank_) return own_.data();
  const Link& each = link(rank);
  return each.scratch.data() + kRowsOffset + reduced_ % window_elements_ * each.row_element;
}

bool Exchange::reduce_ready() {
  if (reduced_ == to_reduce_ || signatures_missing_ != 0) return false;
  if (plan_.in_tree && joined_ < tree_.receive.size()) return false;
  std::size_t limit = to_reduce_;
  for (const int peer : peers_) {
    const Link& each = link(peer);
    if (each.row_bytes != 0 && !plan_.in_tree) limit = std::min(limit, each.row_received / each.row_element);
  }
  // What is not sent yet may not be overwritten.
  for (const Delivery& each : deliveries_) {
    if (each.to == rank_ || link(each.to).carry_sent == link(each.to).carry_end) continue;
    limit = std::min(limit, link(each.to).carry_sent / given_element_ + window_elements_);
  }
  const std::size_t before = reduced_;
  while (reduced_ < to_reduce_) {
    const std::size_t count = std::min(chunk_elements_, to_reduce_ - reduced_);
    if (reduced_ + count > limit) break;
    reduce_chunk(count);
  }
  return reduced_ != before;
}

Delivery Exchange::next_delivery() const {
  std::size_t done = reduced_ * element_;
  for (const Delivery& each : deliveries_) {
    if (done < each.bytes) return {each.bytes - done, each.to};
    done -= each.bytes;
  }
  return {};
}

void Exchange::reduce_chunk(std::size_t count) {
  while (count != 0) {
    const Delivery next = next_delivery();
    const bool is_kept = next.to == rank_;
    std::size_t run = std::min({count, own_.run() / element_, next.bytes / element_});
    const std::size_t at = reduced_ % window_elements_;
    run = std::min(run, is_kept ? result_.run() / element_ : window_elements_ - at);
    const bool is_wide = is_half(collective_->dtype) && (plan_.carried_to >= 0 || plan_.carried_from >= 0);
    if (is_wide) run = std::min(run, kWideElements);
    std::byte* const output = is_kept ? result_.data() : carry_.data() + at * given_element_;
    is_wide ? reduce_wide(output, run) : reduce_run(output, run);
    own_.advance(run * element_);
    if (is_kept) result_.advance(run * element_);
    reduced_ += run;
    count -= run;
  }
}

void Exchange::reduce_run(std::byte* output, std::size_t count) {
  rows_.clear();
  if (plan_.carried_from >= 0) rows_.push_back(row(plan_.carried_from));
  for (int peer = plan_.first_row; peer < plan_.end_row; ++peer) rows_.push_back(row(peer));
  if (collective_->order == Order::tree) return reduce_all(*collective_, {&output, 1}, rows_, count);
  const bool divides_later = plan_.carried_to >= 0 && collective_->reduce == ReduceOp::avg;
  reduce_rows({&output, 1}, rows_, count, collective_->dtype, divides_later ? ReduceOp::sum : collective_->reduce,
              size_);
}

// The same for float16 and bfloat16 whose partial results are float32.
void Exchange::reduce_wide(std::byte* output, std::size_t count) {
  const DType dtype = collective_->dtype;
  const auto n = static_cast<std::size_t>(plan_.end_row - plan_.first_row);
  wide_.resize((n + 1) * kWideElements);
  rows_.clear();
  if (plan_.carried_from >= 0) rows_.push_back(row(plan_.carried_from));
  for (std::size_t i = 0; i < n; ++i) {
    float* const widened = wide_.data() + i * kWideElements;
    widen(row(plan_.first_row + static_cast<int>(i)), widened, count, dtype);
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
  // A signature that nobody waits for is sent whole or not at all.
  const bool is_head_sent = link.header_sent == link.header_bytes;
  const bool is_between = link.announced != 0 && link.announced != sizeof(Signature);
  return is_head_sent && !is_between && link.operand_left == 0 && link.carry_sent == link.carry_end &&
         link.result_sent == link.result_bytes;
}

bool Exchange::received(const Link& link) const {
  return !link.is_expected || (link.signature_received == sizeof(Signature) && link.row_received == link.row_bytes &&
                               link.output_received == link.output_bytes);
}

bool Exchange::finished() const {
  if (reduced_ != to_reduce_ || (plan_.in_tree && !is_concluded_)) return false;
  return std::ranges::all_of(peers_, [this](int peer) { return sent(link(peer)) && received(link(peer)); });
}

}  // namespace lockstep
