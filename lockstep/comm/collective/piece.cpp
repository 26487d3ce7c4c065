#include "lockstep/comm/collective/piece.h"

namespace lockstep::internal {

Piece piece_of(const Collective& collective, int size, int from, int to) {
  const OpTraits& op = traits_of(collective.kind);
  const std::size_t element = element_size(collective.dtype);
  const auto n = static_cast<std::size_t>(size), i = static_cast<std::size_t>(from), j = static_cast<std::size_t>(to);
  if (op.input == Extent::counted) {
    Piece piece{0, 0, collective.counts[i * n + j] * element};
    for (std::size_t k = 0; k < j; ++k) piece.input_offset += collective.counts[i * n + k] * element;
    for (std::size_t k = 0; k < i; ++k) piece.output_offset += collective.counts[k * n + j] * element;
    return piece;
  }
  const std::size_t part = collective.count * element;
  const bool goes = op.sources(to, collective.root, size).holds(from);
  return {op.takes_parts() ? j * part : 0, op.gives_parts() ? i * part : 0, goes ? part : 0};
}

}  // namespace lockstep::internal
