// A piece is what one rank's input has for another rank's output, in the operations that have inputs. Of a reduction it
// is a row. Pure.
#pragma once

#include <cstddef>

#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// In bytes; the offsets are into the sender's input and the receiver's output.
struct Piece {
  std::size_t input_offset = 0;
  std::size_t output_offset = 0;
  std::size_t bytes = 0;
};

// REQUIRES: the operation has an input, and check_arguments() has passed.
Piece piece_of(const Collective& collective, int size, int from, int to);

}  // namespace lockstep::internal
