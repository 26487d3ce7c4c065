// A PeerStream is one link in one collective: what goes out to a peer and what comes in, and how far each has come.
//
//   out  a head (the signature and, in small collectives, data, in one piece), then ranges of memory, one by one
//   in   the peer's signature, a row into scratch memory, then ranges of the output
//
// Values; pure. Lists and scratch memory are kept from one collective to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/collective/call_report.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/collective/segment_cursor.h"
#include "lockstep/comm/collective/signature.h"

namespace lockstep::internal {

// Ranges that move one behind the other.
class RangeQueue {
 public:
  void clear();
  // memory: where the range lies, unless it is in the window of what is reduced.
  void add(const SendRange& range, SegmentCursor memory);

  bool is_done() const { return at_ == parts_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t moved() const { return moved_; }
  // Of the range that begins there.
  std::size_t moved_of(std::size_t begin) const;
  // Where the first byte as_reduced lies that has not moved.
  std::optional<std::size_t> next_reduced() const;

  // The range that moves now, how much of it has moved, and where the rest lies. REQUIRES: !is_done().
  const SendRange& range() const { return parts_[at_].range; }
  std::size_t moved_of_range() const { return moved_of_range_; }
  const SegmentCursor& memory() const { return parts_[at_].memory; }
  void advance(std::size_t bytes);

 private:
  struct Part {
    SendRange range;
    SegmentCursor memory;
  };

  std::vector<Part> parts_;
  std::size_t at_ = 0;
  std::size_t moved_of_range_ = 0;
  std::size_t bytes_ = 0;
  std::size_t moved_ = 0;
};

struct PeerStream {
  // Where a peer's row begins in scratch memory; its signature ends there.
  static constexpr std::size_t kRowOffset = 64;
  // What is known of the peer's call: nothing, or that it is another one or the same.
  enum class Presence : std::uint8_t { unknown, differs, come };

  Presence presence = Presence::unknown;
  Signature theirs = {};
  CallReport report = {};     // of the peer, once calls differ
  bool has_reported = false;  // the peer itself
  // What had failed on the peer when it announced a call, and the number of that.
  std::string failure = {};
  std::uint64_t failed_after = 0;

  ByteSpan head = {};          // empty until all of it is there
  std::size_t head_bytes = 0;  // 0: none, so the peer waits for nothing
  std::size_t head_sent = 0;
  RangeQueue send = {};

  bool is_expected = false;  // the peer's signature, and what follows it
  std::vector<std::byte> scratch = std::vector<std::byte>(kRowOffset);
  std::size_t signature_received = 0;
  std::size_t row_bytes = 0;
  std::size_t row_window = 0;  // how many of them may be here
  std::size_t row_received = 0;
  std::size_t row_consumed = 0;
  RangeQueue receive = {};

  // Nothing is to be sent or received.
  void clear();
  void expect_row(std::size_t bytes, std::size_t window);
  std::byte* row() { return scratch.data() + kRowOffset; }
  const std::byte* row() const { return scratch.data() + kRowOffset; }
  std::byte* signature() { return row() - sizeof(Signature); }
  // Where the next bytes go: of the signature, with the row's behind them; of the row; of the output.
  MutableByteSpan signature_space();
  MutableByteSpan row_space();
  MutableByteSpan output_space() const;

  bool is_sent() const;
  bool is_received() const;
};

}  // namespace lockstep::internal
