// A piece is what one rank sends to another in the operations that only move data from inputs to outputs; see
// OpTraits::moves_pieces(). Pure.
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

// REQUIRES: moves_pieces(), and check_arguments() has passed.
Piece piece_of(const Collective& collective, int size, int from, int to);

}  // namespace lockstep
