// A SegmentCursor walks a list of segments as if they were one run of bytes. A value type; borrows the list.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

class SegmentCursor {
 public:
  SegmentCursor() = default;
  explicit SegmentCursor(std::span<const Segment> segments, std::size_t offset = 0) : segments_(segments) {
    skip_empty();
    advance(offset);
  }

  std::byte* data() const { return segments_.front().data + within_; }
  // Bytes from here to the end of the current segment; 0 at the end of the list.
  std::size_t run() const { return segments_.empty() ? 0 : segments_.front().bytes - within_; }

  void advance(std::size_t bytes) {
    while (bytes != 0 && !segments_.empty()) {
      const std::size_t step = std::min(bytes, run());
      within_ += step;
      bytes -= step;
      skip_empty();
    }
  }

 private:
  void skip_empty() {
    while (!segments_.empty() && within_ == segments_.front().bytes) {
      segments_ = segments_.subspan(1);
      within_ = 0;
    }
  }

  std::span<const Segment> segments_;
  std::size_t within_ = 0;
};

inline void copy_bytes(SegmentCursor from, SegmentCursor to, std::size_t bytes) {
  while (bytes != 0) {
    const std::size_t step = std::min({bytes, from.run(), to.run()});
    if (from.data() != to.data()) std::memcpy(to.data(), from.data(), step);
    from.advance(step);
    to.advance(step);
    bytes -= step;
  }
}

// Copies `bytes` bytes that start `offset` bytes into the list to or from a plain buffer.
inline void gather_bytes(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes) {
  SegmentCursor cursor(from, offset);
  while (bytes != 0) {
    const std::size_t step = std::min(bytes, cursor.run());
    std::memcpy(to, cursor.data(), step);
    cursor.advance(step);
    to += step;
    bytes -= step;
  }
}

inline void scatter_bytes(const std::byte* from, std::span<const Segment> to, std::size_t offset, std::size_t bytes) {
  SegmentCursor cursor(to, offset);
  while (bytes != 0) {
    const std::size_t step = std::min(bytes, cursor.run());
    if (cursor.data() != from) std::memcpy(cursor.data(), from, step);
    cursor.advance(step);
    from += step;
    bytes -= step;
  }
}

// Adds `bytes` bytes that start `offset` bytes into the list to another list.
inline void append_range(std::span<const Segment> from, std::size_t offset, std::size_t bytes,
                         std::vector<Segment>& to) {
  SegmentCursor cursor(from, offset);
  while (bytes != 0) {
    const std::size_t step = std::min(bytes, cursor.run());
    to.push_back({cursor.data(), step});
    cursor.advance(step);
    bytes -= step;
  }
}

}  // namespace lockstep::internal
