#include "lockstep/comm/collective/pipeline.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/collective/piece.h"
#include "lockstep/comm/collective/reduce.h"

namespace lockstep::internal {
namespace {

using Ready = SendRange::Ready;

// How many float16 or bfloat16 elements are widened at once: few enough for the fastest cache.
constexpr std::size_t kWideElements = 1024;

}  // namespace

Pipeline::Pipeline(int rank, std::span<PeerStream> streams, const Topology& topology, const LinkTuning& tuning)
    : rank_(rank), size_(static_cast<int>(streams.size())), streams_(streams), topology_(topology), tuning_(tuning) {
  rows_.reserve(streams.size() + 1);
}

std::span<const Segment> Pipeline::operand() const {
  return traits_of(collective_->kind).is_in_place() ? collective_->output : collective_->input;
}

void Pipeline::begin(const Collective& collective, const Signature& signature) {
  collective_ = &collective;
  phase_ = Phase::comparing;
  plan_reduction(collective, rank_, topology_, route_, tuning_, plan_);
  begin_reduction();
  const std::size_t payload = plan_.whole ? data_bytes(collective) : 0;
  head_.resize(sizeof signature + payload);
  std::memcpy(head_.data(), &signature, sizeof signature);
  gather_bytes(operand(), 0, head_.data() + sizeof signature, payload);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) begin_stream(peer);
  }
}

void Pipeline::begin_reduction() {
  const DType dtype = collective_->dtype;
  element_ = element_size(dtype);
  sum_element_ = dtype == DType::f16 || dtype == DType::bf16 ? sizeof(float) : element_;
  reduced_element_ = gives_sum() ? sum_element_ : element_;
  chunk_ = tuning_.chunk_bytes / element_;
  window_ = chunk_ * tuning_.window_chunks;
  to_reduce_ = bytes_of(plan_.own) / element_;
  reduced_ = 0;
  own_memory_.clear();
  for (const ByteRange& range : plan_.own) append_range(operand(), range.begin, range.bytes(), own_memory_);
  own_ = SegmentCursor(own_memory_);
  kept_ = SegmentCursor(collective_->output, plan_.kept_at);
  const bool keeps_all = plan_.kept.bytes() == to_reduce_ * element_;
  if (!keeps_all) reduced_window_.resize(std::min(to_reduce_, window_) * reduced_element_);
}

void Pipeline::begin_stream(int peer) {
  PeerStream& stream = streams_[static_cast<std::size_t>(peer)];
  plan_link(*collective_, rank_, topology_, peer, route_, tuning_, link_plan_);
  stream.is_expected = true;
  stream.head = head_;
  stream.head_bytes = head_.size();
  for (SendRange range : link_plan_.send) {
    if (range.ready == Ready::as_reduced) {
      range.range.begin = range.range.begin / element_ * reduced_element_;
      range.range.end = range.range.end / element_ * reduced_element_;
      stream.send.add(range, {});
    } else {
      const bool is_operand = range.ready == Ready::at_once;
      stream.send.add(range, SegmentCursor(is_operand ? operand() : collective_->output, range.range.begin));
    }
  }
  const std::size_t row_element = peer == plan_.carried_from ? sum_element_ : element_;
  if (has_row(peer)) stream.expect_row(to_reduce_ * row_element, window_ * row_element);
  for (const ByteRange& range : link_plan_.receive) {
    stream.receive.add({.range = range}, SegmentCursor(collective_->output, range.begin));
  }
}

bool Pipeline::has_row(int peer) const {
  return (peer >= plan_.first_row && peer < plan_.end_row) || peer == plan_.carried_from;
}

bool Pipeline::advance(bool has_compared) {
  if (!has_compared || phase_ == Phase::done) return false;
  if (phase_ == Phase::comparing) {
    copy_own_part();
    phase_ = Phase::reducing;
  }
  const bool moved = reduce_ready();
  if (reduced_ < to_reduce_) return moved;
  phase_ = Phase::done;
  return true;
}

void Pipeline::copy_own_part() {
  const Collective& collective = *collective_;
  if (!traits_of(collective.kind).moves_pieces()) return;
  const Piece own = piece_of(collective, size_, rank_, rank_);
  copy_bytes(SegmentCursor(collective.input, own.input_offset), SegmentCursor(collective.output, own.output_offset),
             own.bytes);
}

ByteSpan Pipeline::next_of_range(const PeerStream& stream) const {
  const SendRange& range = stream.send.range();
  const std::size_t moved = stream.send.moved_of_range();
  const std::size_t ready = ready_bytes(range);
  if (ready <= moved) return {};
  if (range.ready != Ready::as_reduced) {
    return {stream.send.memory().data(), std::min(stream.send.memory().run(), ready - moved)};
  }
  const std::size_t at = (range.range.begin + moved) % (window_ * reduced_element_);
  return ByteSpan(reduced_window_).subspan(at, std::min(ready - moved, reduced_window_.size() - at));
}

std::size_t Pipeline::ready_bytes(const SendRange& range) const {
  const std::size_t all = range.range.bytes();
  switch (range.ready) {
    case Ready::at_once: return all;
    case Ready::as_kept: return std::min(all, reduced_ * element_);
    case Ready::as_received: return streams_[static_cast<std::size_t>(range.from)].receive.moved_of(range.range.begin);
    case Ready::as_reduced: {
      const std::size_t reduced = reduced_ * reduced_element_;
      return std::min(all, reduced - std::min(reduced, range.range.begin));
    }
  }
  return 0;
}

bool Pipeline::reduce_ready() {
  if (reduced_ == to_reduce_) return false;
  const std::size_t most = limit();
  const std::size_t before = reduced_;
  while (reduced_ < to_reduce_) {
    const std::size_t count = std::min(chunk_, to_reduce_ - reduced_);
    if (reduced_ + count > most) break;
    reduce_chunk(count);
  }
  if (reduced_ == before) return false;
  for (int peer = 0; peer < size_; ++peer) {
    PeerStream& stream = streams_[static_cast<std::size_t>(peer)];
    if (stream.row_bytes != 0) stream.row_consumed = stream.row_bytes / to_reduce_ * reduced_;
  }
  return true;
}

std::size_t Pipeline::limit() const {
  std::size_t most = to_reduce_;
  for (const PeerStream& each : streams_) {
    if (each.row_bytes != 0) most = std::min(most, each.row_received / (each.row_bytes / to_reduce_));
    if (plan_.kept.bytes() == to_reduce_ * element_) continue;
    if (const auto unsent = each.send.next_reduced()) most = std::min(most, *unsent / reduced_element_ + window_);
  }
  return most;
}

void Pipeline::reduce_chunk(std::size_t count) {
  const std::size_t kept_begin = plan_.kept.begin / element_, kept_end = plan_.kept.end / element_;
  while (count != 0) {
    const bool is_kept = reduced_ >= kept_begin && reduced_ < kept_end;
    const std::size_t at = reduced_ % window_;
    std::size_t run = std::min(count, own_.run() / element_);
    if (is_kept) {
      run = std::min({run, kept_end - reduced_, kept_.run() / element_});
    } else {
      run = std::min(run, window_ - at);
      if (reduced_ < kept_begin) run = std::min(run, kept_begin - reduced_);
    }
    if (is_wide()) run = std::min(run, kWideElements);
    std::byte* const output = is_kept ? kept_.data() : reduced_window_.data() + at * reduced_element_;
    rows_.clear();
    if (takes_sum()) rows_.push_back(row(plan_.carried_from));
    for (int peer = plan_.first_row; peer < plan_.end_row; ++peer) rows_.push_back(row(peer));
    reduce_rows_to(output, run);
    own_.advance(run * element_);
    if (is_kept) kept_.advance(run * element_);
    reduced_ += run;
    count -= run;
  }
}

// Partial sums of float16 and bfloat16 are float32, and are rounded at the end only; averages are divided at the end.
// So the bits are those of all ranks' rows reduced at once.
void Pipeline::reduce_rows_to(std::byte* output, std::size_t count) {
  const DType dtype = collective_->dtype;
  if (collective_->order == Order::tree) return reduce_all(*collective_, {&output, 1}, rows_, count);
  const bool divides_later = gives_sum() && collective_->reduce == ReduceOp::avg;
  const ReduceOp op = divides_later ? ReduceOp::sum : collective_->reduce;
  if (!is_wide()) return reduce_rows({&output, 1}, rows_, count, dtype, op, plan_.end_row);
  wide_.resize((rows_.size() + 1) * kWideElements);
  for (std::size_t i = takes_sum() ? 1 : 0; i < rows_.size(); ++i) {
    float* const widened = wide_.data() + i * kWideElements;
    widen(rows_[i], widened, count, dtype);
    rows_[i] = reinterpret_cast<const std::byte*>(widened);
  }
  float* const last = wide_.data() + rows_.size() * kWideElements;
  std::byte* const sum = gives_sum() ? output : reinterpret_cast<std::byte*>(last);
  reduce_rows({&sum, 1}, rows_, count, DType::f32, op, plan_.end_row);
  if (!gives_sum()) narrow(last, output, count, dtype);
}

const std::byte* Pipeline::row(int rank) const {
  if (rank == rank_) return own_.data();
  const PeerStream& stream = streams_[static_cast<std::size_t>(rank)];
  return stream.row() + reduced_ % window_ * (rank == plan_.carried_from ? sum_element_ : element_);
}

}  // namespace lockstep::internal
