#include "lockstep/collective/piece.h"

namespace lockstep {

Piece piece_of(const Collective& collective, int size, int from, int to) {
  const std::size_t element = element_size(collective.dtype);
  const std::size_t part = collective.count * element;
  const auto n = static_cast<std::size_t>(size), i = static_cast<std::size_t>(from), j = static_cast<std::size_t>(to);
  switch (collective.kind) {
    case OpKind::all_gather: return {0, i * part, part};
    case OpKind::gather: return {0, i * part, to == collective.root ? part : 0};
    case OpKind::scatter: return {j * part, 0, from == collective.root ? part : 0};
    case OpKind::all_to_all: {
      Piece piece{0, 0, collective.counts[i * n + j] * element};
      for (std::size_t k = 0; k < j; ++k) piece.input_offset += collective.counts[i * n + k] * element;
      for (std::size_t k = 0; k < i; ++k) piece.output_offset += collective.counts[k * n + j] * element;
      return piece;
    }
    default: return {};
  }
}

bool consists_of_pieces(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::scatter || kind == OpKind::all_to_all;
}

bool reduces_in_place(OpKind kind) { return kind == OpKind::all_reduce || kind == OpKind::reduce; }

}  // namespace lockstep
