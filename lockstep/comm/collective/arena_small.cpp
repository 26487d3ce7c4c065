#include "lockstep/comm/collective/arena_small.h"

#include <numeric>

#include "lockstep/comm/collective/piece.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/collective/segment_cursor.h"

namespace lockstep::internal {
namespace {

using arena::Slot;

// All-reduces at least this large are done in place where they can be: below, a second synchronisation costs more than
// reading every rank's whole operand.
constexpr std::size_t kInPlaceBytes = 8 * 1024;

// Bytes that a rank has to show to the others, or would if it were the root.
std::size_t contribution_bytes(const Collective& c, int rank, int size) {
  const std::size_t element = element_size(c.dtype);
  const auto n = static_cast<std::size_t>(size);
  if (traits_of(c.kind).input == Extent::counted) {
    const auto row = c.counts.subspan(static_cast<std::size_t>(rank) * n, n);
    return std::accumulate(row.begin(), row.end(), std::size_t{0}) * element;
  }
  return c.count * element * (traits_of(c.kind).takes_parts() ? n : 1);
}

std::span<const Segment> contribution(const Collective& c, int rank) {
  const OpTraits& op = traits_of(c.kind);
  if (!op.is_in_place()) return c.input;
  return op.reduces || rank == c.root ? c.output : std::span<const Segment>{};
}

std::byte* payload_of(Slot& slot, std::size_t bytes) {
  return bytes <= arena::kInlineBytes ? slot.inlined : slot.payload;
}

}  // namespace

bool is_small(const Collective& c, int size) {
  const OpTraits& op = traits_of(c.kind);
  if (op.input != Extent::counted) {
    return contribution_bytes(c, 0, size) <= (op.reduces_in_place() ? kInPlaceBytes : arena::kSlotPayloadBytes);
  }
  for (int rank = 0; rank < size; ++rank) {
    if (contribution_bytes(c, rank, size) > arena::kSlotPayloadBytes) return false;
  }
  return true;
}

void write_small(const Collective& collective, int rank, int size, Slot& slot) {
  const auto mine = contribution(collective, rank);
  const std::size_t bytes = mine.empty() ? 0 : contribution_bytes(collective, rank, size);
  gather_bytes(mine, 0, payload_of(slot, bytes), bytes);
}

void finish_small(const Arena& arena, const Collective& c, std::uint64_t sequence, std::span<const std::byte*> inputs) {
  const int rank = arena.rank(), size = arena.size();
  const std::size_t part = c.count * element_size(c.dtype);
  const auto shown = [&](int peer) {
    return payload_of(arena.slot(peer, sequence), contribution_bytes(c, peer, size));
  };
  const OpTraits& traits = traits_of(c.kind);
  if (traits.moves_pieces()) {
    for (int peer = 0; peer < size; ++peer) {
      const Piece piece = piece_of(c, size, peer, rank);
      scatter_bytes(shown(peer) + piece.input_offset, c.output, piece.output_offset, piece.bytes);
    }
    return;
  }
  if (!traits.reduces) {  // a broadcast, or nothing
    if (traits.moves_data() && rank != c.root) scatter_bytes(shown(c.root), c.output, 0, part);
    return;
  }
  if (!traits.has_result(rank, c.root)) return;
  const auto rows = inputs.first(static_cast<std::size_t>(traits.sources(rank, c.root, size).end));
  const std::size_t skip = traits.takes_parts() ? static_cast<std::size_t>(rank) * part : 0;
  const std::size_t element = element_size(c.dtype);
  SegmentCursor out(c.output);
  for (std::size_t done = 0; done < part;) {
    const std::size_t run = out.run();
    for (std::size_t peer = 0; peer < rows.size(); ++peer) rows[peer] = shown(static_cast<int>(peer)) + skip + done;
    std::byte* target = out.data();
    reduce_all(c, {&target, 1}, rows, run / element);
    out.advance(run);
    done += run;
  }
}

}  // namespace lockstep::internal
