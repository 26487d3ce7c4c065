// A piece is what one rank sends to another in the operations that only move data from inputs to outputs: all_gather,
// gather, scatter and all_to_all. Pure.
#pragma once

#include <cstddef>

#include "lockstep/collective/collective.h"

namespace lockstep {

// In bytes; the offsets are into the sender's input and the receiver's output.
struct Piece {
  std::size_t input_offset = 0;
  std::size_t output_offset = 0;
  std::size_t bytes = 0;
};

// REQUIRES: check_arguments() has passed.
Piece piece_of(const Collective& collective, int size, int from, int to);
// Whether piece_of() says everything about the operation.
bool consists_of_pieces(OpKind kind);
// Whether every rank reduces the same memory that it gave: all_reduce and reduce.
bool reduces_in_place(OpKind kind);

}  // namespace lockstep
