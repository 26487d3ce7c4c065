#include "lockstep/comm/adapters/carrier_rounds.h"

#include <algorithm>
#include <vector>

#include "lockstep/comm/collective/piece.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/collective/segment_cursor.h"

namespace lockstep::internal {
namespace {

// Elements of each rank that go into one round, of which a buffer holds so many parts.
std::size_t round_length(std::size_t buffer_bytes, std::size_t element, std::size_t parts) {
  return std::max<std::size_t>(1, buffer_bytes / (element * parts));
}

// Libraries scan in an order of their own, or not at all: rows are gathered, and reduced here.
bool is_derived(const OpTraits& op) { return op.from != From::all; }

// Leaves the result where the first row was.
void reduce_gathered(Carrier& carrier, const Collective& collective, std::byte* gathered, std::size_t bytes,
                     int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::byte> memory(std::max<std::size_t>(n, 1) * bytes);
  std::vector<const std::byte*> rows;
  for (std::size_t row = 0; row < n; ++row) rows.push_back(memory.data() + row * bytes);
  carrier.copy(memory.data(), gathered, n * bytes);
  std::byte* const result = memory.data();
  reduce_all(collective, {&result, 1}, rows, bytes / element_size(collective.dtype));
  carrier.copy(gathered, result, bytes);
}

}  // namespace

bool supports(OpKind kind, ReduceOp op, DType dtype, Reductions library) {
  const OpTraits& traits = traits_of(kind);
  return supports(kind, op, dtype) && (!traits.reduces || is_derived(traits) || library(op, dtype));
}

void CarrierRounds::pack(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes) {
  for (SegmentCursor cursor(from, offset); bytes != 0;) {
    const std::size_t step = std::min(bytes, cursor.run());
    carrier_.copy(to, cursor.data(), step);
    cursor.advance(step);
    to += step;
    bytes -= step;
  }
}

void CarrierRounds::unpack(const std::byte* from, std::span<const Segment> to, std::size_t offset, std::size_t bytes) {
  for (SegmentCursor cursor(to, offset); bytes != 0;) {
    const std::size_t step = std::min(bytes, cursor.run());
    carrier_.copy(cursor.data(), from, step);
    cursor.advance(step);
    from += step;
    bytes -= step;
  }
}

void CarrierRounds::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline) {
  const CarrierBuffers buffers = carrier_.buffers(mine.size(), all.size());
  carrier_.copy(buffers.input, mine.data(), mine.size());
  carrier_.run({.kind = OpKind::all_gather, .count = mine.size(), .input = buffers.input, .output = buffers.output},
               deadline);
  carrier_.copy(all.data(), buffers.output, all.size());
}

void CarrierRounds::run(const Collective& collective, Deadline deadline) {
  const std::size_t element = element_size(collective.dtype), n = static_cast<std::size_t>(size_);
  const OpTraits& op = traits_of(collective.kind);
  if (!op.moves_data()) return;  // comparing signatures was a barrier
  const std::size_t length = round_length(buffer_bytes_, element, op.is_in_place() ? 1 : n);
  if (op.input == Extent::counted) {
    // All ranks know all counts, and so the number of rounds.
    const std::size_t most = *std::max_element(collective.counts.begin(), collective.counts.end());
    for (std::size_t begin = 0; begin < most; begin += length) {
      run_all_to_all_round(collective, begin, std::min(length, most - begin), deadline);
    }
    return;
  }
  for (std::size_t begin = 0; begin < collective.count; begin += length) {
    run_round(collective, begin, std::min<std::size_t>(length, collective.count - begin), deadline);
  }
}

void CarrierRounds::run_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline) {
  const OpTraits& op = traits_of(collective.kind);
  const std::size_t element = element_size(collective.dtype), n = static_cast<std::size_t>(size_);
  const std::size_t bytes = count * element, whole = collective.count * element, offset = begin * element;
  const bool is_root = rank_ == collective.root;
  const bool derived = is_derived(op), gathers = op.gives_parts() || derived;
  const bool gives = op.gives_parts() && (op.output == Extent::all || is_root);
  const bool takes = op.takes_parts() && (op.input == Extent::all || is_root);
  const CarrierBuffers buffers = carrier_.buffers(op.takes_parts() ? bytes * n : bytes, gathers ? bytes * n : bytes);
  if (op.is_in_place()) {
    pack(collective.output, offset, buffers.output, bytes);
  } else if (gathers) {
    pack(collective.input, offset, buffers.input, bytes);
  } else if (takes) {
    for (std::size_t peer = 0; peer < n; ++peer) {
      pack(collective.input, peer * whole + offset, buffers.input + peer * bytes, bytes);
    }
  }
  carrier_.run({.kind = derived ? OpKind::all_gather : op.kind,
                .reduce = op.reduces && !derived ? collective.reduce : ReduceOp::sum,
                .dtype = collective.dtype,
                .root = collective.root,
                .count = count,
                .input = buffers.input,
                .output = buffers.output},
               deadline);
  if (derived) {
    const int rows = op.sources(rank_, collective.root, size_).end;
    reduce_gathered(carrier_, collective, buffers.output, bytes, rows);
  }
  if (gives) {
    for (std::size_t peer = 0; peer < n; ++peer) {
      unpack(buffers.output + peer * bytes, collective.output, peer * whole + offset, bytes);
    }
  } else if (!op.gives_parts() && op.has_result(rank_, collective.root)) {
    unpack(buffers.output, collective.output, offset, bytes);
  }
}

void CarrierRounds::run_all_to_all_round(const Collective& collective, std::size_t begin, std::size_t count,
                                         Deadline deadline) {
  const std::size_t element = element_size(collective.dtype);
  std::vector<Piece> to, from;
  std::vector<std::size_t> sent, received;
  std::size_t sent_bytes = 0, received_bytes = 0;
  // The part of a piece that belongs to this round.
  const auto part_of = [&](Piece piece, std::vector<Piece>& pieces, std::vector<std::size_t>& elements) {
    const std::size_t skip = std::min(piece.bytes, begin * element);
    piece.input_offset += skip;
    piece.output_offset += skip;
    piece.bytes = std::min(piece.bytes - skip, count * element);
    pieces.push_back(piece);
    elements.push_back(piece.bytes / element);
    return piece.bytes;
  };
  for (int peer = 0; peer < size_; ++peer) {
    sent_bytes += part_of(piece_of(collective, size_, rank_, peer), to, sent);
    received_bytes += part_of(piece_of(collective, size_, peer, rank_), from, received);
  }
  const CarrierBuffers buffers = carrier_.buffers(sent_bytes, received_bytes);
  std::byte* next = buffers.input;
  for (const Piece& piece : to) {
    pack(collective.input, piece.input_offset, next, piece.bytes);
    next += piece.bytes;
  }
  carrier_.run({.kind = collective.kind,
                .dtype = collective.dtype,
                .input = buffers.input,
                .output = buffers.output,
                .sent = sent,
                .received = received},
               deadline);
  const std::byte* last = buffers.output;
  for (const Piece& piece : from) {
    unpack(last, collective.output, piece.output_offset, piece.bytes);
    last += piece.bytes;
  }
}

}  // namespace lockstep::internal
