#include "lockstep/comm/collective/arena_staged.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/collective/piece.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/collective/segment_cursor.h"
#include "lockstep/comm/collective/slice.h"

namespace lockstep::internal {
namespace {

// Smaller writes are not worth timing.
constexpr std::size_t kTimedBytes = std::size_t{64} << 10;
constexpr int kTryOther = 64;  // large writes, of which one is the other way
constexpr double kClearlySlower = 1.5;

// With non-temporal stores.
void stream(const std::byte* from, std::byte* to, std::size_t bytes) {
#if defined(__x86_64__)
  for (; bytes >= 64; bytes -= 64, from += 64, to += 64) {
    for (int i = 0; i < 64; i += 16) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), part);
    }
  }
  _mm_sfence();
#endif
  std::memcpy(to, from, bytes);
}

void stream_bytes(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes) {
  SegmentCursor cursor(from, offset);
  while (bytes != 0) {
    const std::size_t step = std::min(bytes, cursor.run());
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
    aligned ? stream(cursor.data(), to, step) : void(std::memcpy(to, cursor.data(), step));
    cursor.advance(step);
    to += step;
    bytes -= step;
  }
}

using Word = std::atomic<std::uint32_t> arena::RankControl::*;

// One staged collective in progress. A chunk is the elements [begin, begin + count) of the collective (of every rank's
// part, where the operation has parts).
class Staged {
 public:
  explicit Staged(StagedCall& call)
      : call_(call),
        c_(call.collective),
        arena_(call.arena),
        rank_(arena_.rank()),
        size_(arena_.size()),
        element_(element_size(c_.dtype)),
        op_(traits_of(c_.kind)),
        rows_(call.inputs.first(
            static_cast<std::size_t>(op_.is_in_place() ? size_ : op_.sources(rank_, c_.root, size_).end))) {}

  void run() {
    const bool in_parts = op_.takes_parts() || op_.input == Extent::counted;
    const std::size_t parts = in_parts ? static_cast<std::size_t>(size_) : 1;
    const std::size_t limit = elements_of_chunk(element_, parts);
    Chunk chunk = next_chunk(0, limit);
    fill(chunk);
    while (chunk.count != 0) {
      wait_all(&arena::RankControl::filled, call_.chunk + 1);
      const Chunk next = next_chunk(chunk.begin + chunk.count, limit);
      if (op_.reduces_in_place()) {
        reduce_slice(chunk);
        tell(&arena::RankControl::drained, call_.chunk + 1);
        fill_ahead(next);
        wait_all(&arena::RankControl::drained, call_.chunk + 1);
      } else {
        tell(&arena::RankControl::drained, call_.chunk + 1);
        fill_ahead(next);
      }
      take(chunk);
      chunk = next;
      ++call_.chunk;
    }
  }

 private:
  struct Chunk {
    std::size_t begin = 0;
    std::size_t count = 0;
  };

  // Of the longest part.
  std::size_t total() const {
    return op_.input == Extent::counted ? *std::max_element(c_.counts.begin(), c_.counts.end()) : c_.count;
  }
  Chunk next_chunk(std::size_t begin, std::size_t limit) const { return {begin, std::min(limit, total() - begin)}; }
  Slice slice(const Chunk& chunk, int rank) const { return slice_of(chunk.count, size_, rank); }
  std::byte* staging(int rank) const { return arena_.staging(rank, call_.chunk + ahead_); }
  std::size_t bytes(std::size_t elements) const { return elements * element_; }

  void tell(Word word, std::uint32_t value) const {
    (arena_.control(rank_).*word).store(value, std::memory_order_release);
    arena_.ring();
  }

  void wait_all(Word word, std::uint32_t target) const {
    const auto missing = [&](int peer) {
      return static_cast<std::int32_t>((arena_.control(peer).*word).load(std::memory_order_acquire) - target) < 0;
    };
    const auto ready = [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (missing(peer)) return false;
      }
      return true;
    };
    arena_.await(ready, missing, call_.explain, call_.deadline);
  }

  void fill_ahead(const Chunk& chunk) {
    if (chunk.count == 0) return;
    ahead_ = 1;
    fill(chunk);
    ahead_ = 0;
  }

  // Copies what the others need of this rank's operand into its buffer.
  void fill(const Chunk& chunk) {
    std::byte* mine = staging(rank_);
    if (op_.is_in_place() && !op_.reduces) {
      if (rank_ == c_.root) call_.writer.write(c_.output, bytes(chunk.begin), mine, bytes(chunk.count));
    } else if (op_.input == Extent::one) {
      call_.writer.write(c_.input, bytes(chunk.begin), mine, bytes(chunk.count));
    } else {  // all but the own part, which is read where it lies
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) show_part(chunk, peer, mine);
      }
    }
    tell(&arena::RankControl::filled, call_.chunk + ahead_ + 1);
  }

  // What a peer needs of this rank's operand.
  void show_part(const Chunk& chunk, int peer, std::byte* mine) {
    const auto p = static_cast<std::size_t>(peer);
    if (op_.moves_pieces()) {
      const Piece piece = piece_within(chunk, rank_, peer);
      call_.writer.write(c_.input, piece.input_offset, mine + p * bytes(chunk.count), piece.bytes);
    } else if (op_.is_in_place()) {
      const Slice part = slice(chunk, peer);
      call_.writer.write(c_.output, bytes(chunk.begin + part.begin), mine + bytes(part.begin), bytes(part.count()));
    } else {
      call_.writer.write(c_.input, bytes(p * c_.count + chunk.begin), mine + bytes(p * chunk.count),
                         bytes(chunk.count));
    }
  }

  // Where in a buffer the part for this rank is.
  std::size_t own_part(const Chunk& chunk) const {
    return op_.input == Extent::one ? 0 : static_cast<std::size_t>(rank_) * bytes(chunk.count);
  }

  // What of a piece lies in the chunk.
  Piece piece_within(const Chunk& chunk, int from, int to) const {
    Piece piece = piece_of(c_, size_, from, to);
    const std::size_t begin = std::min(bytes(chunk.begin), piece.bytes);
    piece.input_offset += begin;
    piece.output_offset += begin;
    piece.bytes = std::min(bytes(chunk.count), piece.bytes - begin);
    return piece;
  }

  // Reduces `count` elements: this rank's own operand at `own`, the others' at `offset` of their staging buffers; the
  // result goes to `output` and, if `also` is not null, there too.
  void reduce(SegmentCursor own, std::size_t offset, SegmentCursor output, std::byte* also, std::size_t count) {
    for (std::size_t left = bytes(count); left != 0;) {
      const std::size_t run = std::min({left, own.run(), output.run()});
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        const int peer = static_cast<int>(i);
        rows_[i] = peer == rank_ ? own.data() : staging(peer) + offset;
      }
      std::byte* targets[2] = {output.data(), also};
      reduce_all(c_, {targets, also != nullptr ? 2U : 1U}, rows_, run / element_);
      own.advance(run);
      output.advance(run);
      offset += run;
      if (also != nullptr) also += run;
      left -= run;
    }
  }

  void reduce_slice(const Chunk& chunk) {
    const Slice part = slice(chunk, rank_);
    if (part.count() == 0) return;
    const SegmentCursor own(c_.output, bytes(chunk.begin + part.begin));
    std::byte* const shown = staging(rank_) + bytes(part.begin);
    if (!call_.writer.streams()) return reduce(own, bytes(part.begin), own, shown, part.count());
    reduce(own, bytes(part.begin), own, nullptr, part.count());
    stream_bytes(c_.output, bytes(chunk.begin + part.begin), shown, bytes(part.count()));
  }

  // Copies what this rank needs out of the others' buffers.
  void take(const Chunk& chunk) {
    if (op_.moves_pieces()) {
      for (int peer = 0; peer < size_; ++peer) take_piece(chunk, peer);
    } else if (op_.reduces_in_place()) {
      if (!op_.has_result(rank_, c_.root)) return;
      for (int peer = 0; peer < size_; ++peer) {
        const Slice part = slice(chunk, peer);
        if (peer != rank_) {
          scatter_bytes(staging(peer) + bytes(part.begin), c_.output, bytes(chunk.begin + part.begin),
                        bytes(part.count()));
        }
      }
    } else if (op_.reduces) {
      const SegmentCursor own(c_.input, piece_of(c_, size_, rank_, rank_).input_offset + bytes(chunk.begin));
      const SegmentCursor output(c_.output, bytes(chunk.begin));
      reduce(own, own_part(chunk), output, nullptr, chunk.count);
    } else if (rank_ != c_.root) {  // a broadcast
      scatter_bytes(staging(c_.root), c_.output, bytes(chunk.begin), bytes(chunk.count));
    }
  }

  void take_piece(const Chunk& chunk, int peer) {
    const Piece piece = piece_within(chunk, peer, rank_);
    if (peer == rank_) {
      return copy_bytes(SegmentCursor(c_.input, piece.input_offset), SegmentCursor(c_.output, piece.output_offset),
                        piece.bytes);
    }
    scatter_bytes(staging(peer) + own_part(chunk), c_.output, piece.output_offset, piece.bytes);
  }

  StagedCall& call_;
  const Collective& c_;
  const Arena& arena_;
  const int rank_;
  const int size_;
  const std::size_t element_;
  const OpTraits& op_;
  std::span<const std::byte*> rows_;  // of this rank's result, or of its slice of everybody's; scratch
  std::uint32_t ahead_ = 0;           // 1 while the next chunk is being filled
};

}  // namespace

void StagingWriter::write(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes) {
  if (bytes < kTimedBytes) return gather_bytes(from, offset, to, bytes);
  const bool tries_other = ++writes_ % kTryOther == 2;
  const bool now_streams = streams_ != tries_other;
  const TimePoint start = tsc_clock().now();
  now_streams ? stream_bytes(from, offset, to, bytes) : gather_bytes(from, offset, to, bytes);
  const double taken = seconds(tsc_clock().now() - start) / static_cast<double>(bytes);
  double& known = seconds_per_byte_[now_streams ? 1 : 0];
  known = tries_other || known == 0 ? taken : 0.75 * known + 0.25 * taken;
  // Readers prefer ordinary stores, which leave the data in the cache.
  streams_ = seconds_per_byte_[1] != 0 && seconds_per_byte_[0] > kClearlySlower * seconds_per_byte_[1];
}

std::size_t elements_of_chunk(std::size_t element, std::size_t parts) {
  const std::size_t most = arena::kStagingBytes / element / parts;
  return most >= 64 ? most / 64 * 64 : std::max<std::size_t>(most, 1);
}

void run_staged(StagedCall& call) { Staged(call).run(); }

}  // namespace lockstep::internal
