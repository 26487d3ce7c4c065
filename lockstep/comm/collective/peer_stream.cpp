#include "lockstep/comm/collective/peer_stream.h"

namespace lockstep::internal {

void RangeQueue::clear() {
  parts_.clear();
  at_ = moved_of_range_ = bytes_ = moved_ = 0;
}

void RangeQueue::add(const SendRange& range, SegmentCursor memory) {
  parts_.push_back({range, memory});
  bytes_ += range.range.bytes();
}

void RangeQueue::advance(std::size_t bytes) {
  Part& part = parts_[at_];
  part.memory.advance(bytes);
  moved_ += bytes;
  moved_of_range_ += bytes;
  if (moved_of_range_ < part.range.range.bytes()) return;
  ++at_;
  moved_of_range_ = 0;
}

std::size_t RangeQueue::moved_of(std::size_t begin) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const ByteRange& range = parts_[i].range.range;
    if (range.begin == begin) return i < at_ ? range.bytes() : i == at_ ? moved_of_range_ : 0;
  }
  return 0;
}

std::optional<std::size_t> RangeQueue::next_reduced() const {
  for (std::size_t i = at_; i < parts_.size(); ++i) {
    const SendRange& each = parts_[i].range;
    if (each.ready == SendRange::Ready::as_reduced) return each.range.begin + (i == at_ ? moved_of_range_ : 0);
  }
  return std::nullopt;
}

void PeerStream::clear() {
  is_expected = false;
  signature_received = 0;
  presence = Presence::unknown;
  head = {};
  head_bytes = head_sent = 0;
  send.clear();
  receive.clear();
  expect_row(0, 0);
}

void PeerStream::expect_row(std::size_t bytes, std::size_t window) {
  row_bytes = bytes;
  row_window = std::min(bytes, window);
  row_received = row_consumed = 0;
  if (scratch.size() < kRowOffset + row_window) scratch.resize(kRowOffset + row_window);
}

MutableByteSpan PeerStream::signature_space() {
  return {signature() + signature_received, sizeof(Signature) - signature_received + row_window};
}

MutableByteSpan PeerStream::row_space() {
  const std::size_t at = row_received % row_window;
  const std::size_t limit = std::min(row_bytes, row_consumed + row_window);
  return {row() + at, std::min(row_window - at, limit - row_received)};
}

MutableByteSpan PeerStream::output_space() const {
  const std::size_t left = receive.range().range.bytes() - receive.moved_of_range();
  return {receive.memory().data(), std::min(receive.memory().run(), left)};
}

bool PeerStream::is_sent() const { return head_sent == head_bytes && send.is_done(); }

bool PeerStream::is_received() const {
  return !is_expected || (signature_received == sizeof(Signature) && row_received == row_bytes && receive.is_done());
}

}  // namespace lockstep::internal
