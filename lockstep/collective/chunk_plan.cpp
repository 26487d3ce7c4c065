#include "lockstep/collective/chunk_plan.h"

#include "lockstep/collective/piece.h"
#include "lockstep/collective/slice.h"

namespace lockstep {
namespace {

std::size_t data_bytes(const Collective& collective) { return collective.count * element_size(collective.dtype); }

ByteRange slice_bytes(const Collective& collective, int slices, int index) {
  const Slice slice = slice_of(collective.count, slices, index);
  const std::size_t element = element_size(collective.dtype);
  return {slice.begin * element, slice.end * element};
}

// The part of a list of n parts that belongs to a rank.
ByteRange part(const Collective& collective, int rank) {
  const std::size_t bytes = data_bytes(collective);
  const std::size_t begin = bytes * static_cast<std::size_t>(rank);
  return {begin, begin + bytes};
}

bool is_small(const Collective& collective, const LinkTuning& tuning) {
  return data_bytes(collective) <= tuning.small_bytes;
}

// A large broadcast is cut among the ranks other than the root, which pass their slices on to each other.
ByteRange broadcast_slice(const Collective& collective, int size, int rank) {
  return slice_bytes(collective, size - 1, rank < collective.root ? rank : rank - 1);
}

LinkPlan plan_broadcast(const Collective& collective, int rank, int size, int peer, const LinkTuning& tuning) {
  const int root = collective.root;
  const bool direct = size == 2 || is_small(collective, tuning);
  const ByteRange everything{0, data_bytes(collective)};
  if (rank == root) return {.send_operand = direct ? everything : broadcast_slice(collective, size, peer)};
  if (peer == root) return {.receive = direct ? everything : broadcast_slice(collective, size, rank)};
  if (direct) return {};
  return {.send_result = broadcast_slice(collective, size, rank), .receive = broadcast_slice(collective, size, peer)};
}

}  // namespace

ChunkPlan plan_chunks(const Collective& collective, int rank, int size, const LinkTuning& tuning) {
  const ByteRange everything{0, data_bytes(collective)};
  switch (collective.kind) {
    case OpKind::all_reduce: {
      const bool whole = is_small(collective, tuning);
      const ByteRange own = whole ? everything : slice_bytes(collective, size, rank);
      return {.in_place = true, .whole = whole, .row_bytes = own.bytes(), .own = own, .result = own};
    }
    case OpKind::reduce_scatter:
      return {.row_bytes = everything.bytes(), .own = part(collective, rank), .result = everything};
    case OpKind::broadcast: return {.in_place = true, .whole = rank == collective.root && is_small(collective, tuning)};
    case OpKind::reduce: {
      if (!is_small(collective, tuning)) {
        const ByteRange own = slice_bytes(collective, size, rank);
        return {.in_place = true, .row_bytes = own.bytes(), .own = own, .result = own};
      }
      if (rank != collective.root) return {.in_place = true};
      return {.in_place = true, .row_bytes = everything.bytes(), .own = everything, .result = everything};
    }
    case OpKind::all_gather: return {.whole = is_small(collective, tuning)};
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all:
    case OpKind::barrier: break;
  }
  return {};
}

LinkPlan plan_reduce(const Collective& collective, int rank, int size, int peer, const LinkTuning& tuning) {
  const int root = collective.root;
  if (is_small(collective, tuning)) return {.send_operand = {0, peer == root ? data_bytes(collective) : 0}};
  LinkPlan plan{.send_operand = slice_bytes(collective, size, peer)};
  if (peer == root) plan.send_result = slice_bytes(collective, size, rank);
  if (rank == root) plan.receive = slice_bytes(collective, size, peer);
  return plan;
}

LinkPlan plan_pieces(const Collective& collective, int rank, int size, int peer) {
  const Piece to = piece_of(collective, size, rank, peer);
  const Piece from = piece_of(collective, size, peer, rank);
  return {.send_operand = {to.input_offset, to.input_offset + to.bytes},
          .receive = {from.output_offset, from.output_offset + from.bytes}};
}

LinkPlan plan_link(const Collective& collective, int rank, int size, int peer, const LinkTuning& tuning) {
  const ByteRange everything{0, data_bytes(collective)};
  switch (collective.kind) {
    case OpKind::all_reduce: {
      if (is_small(collective, tuning)) return {.send_operand = everything};
      const ByteRange theirs = slice_bytes(collective, size, peer);
      return {.send_operand = theirs, .send_result = slice_bytes(collective, size, rank), .receive = theirs};
    }
    case OpKind::reduce_scatter: return {.send_operand = part(collective, peer)};
    case OpKind::reduce: return plan_reduce(collective, rank, size, peer, tuning);
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all: return plan_pieces(collective, rank, size, peer);
    case OpKind::broadcast: return plan_broadcast(collective, rank, size, peer, tuning);
    case OpKind::barrier: break;
  }
  return {};
}

}  // namespace lockstep
