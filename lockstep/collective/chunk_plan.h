// The chunk plan says which bytes a rank exchanges with each peer in one collective over links. Pure.
//
// A link carries, in this order: a range of the sender's operand, which is ready from the start, and a range of the
// sender's output, sent on as it becomes ready. What arrives is either a row, to be reduced with the other ranks' rows,
// or goes straight into the output.
#pragma once

#include <cstddef>

#include "lockstep/collective/collective.h"

namespace lockstep {

// Sizes at which algorithms change over. All ranks of a group use the same.
struct LinkTuning {
  // Up to this size every rank sends everything to everybody, which takes one exchange instead of two.
  std::size_t small_bytes = std::size_t{16} << 10;
  // What is reduced at once; a multiple of 64.
  std::size_t chunk_bytes = std::size_t{128} << 10;
  // How many chunks of a peer may wait for the other peers'.
  std::size_t window_chunks = 4;
};

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t bytes() const { return end - begin; }
};

// What all links of this rank have in common.
struct ChunkPlan {
  // The operand is the output (all_reduce, reduce, broadcast), not the input.
  bool in_place = false;
  // This rank's whole operand travels behind its signature, in one piece.
  bool whole = false;
  // What each peer sends to be reduced with `own` of this rank's operand, and where in the output the result goes.
  std::size_t row_bytes = 0;
  ByteRange own = {};
  ByteRange result = {};
};

// One link. Ranges of the operand and of this rank's output.
struct LinkPlan {
  ByteRange send_operand = {};
  ByteRange send_result = {};  // of ChunkPlan::result if that is reduced, else of what the root sends
  ByteRange receive = {};      // into the output, behind the row
};

// REQUIRES: check_arguments() has passed.
ChunkPlan plan_chunks(const Collective& collective, int rank, int size, const LinkTuning& tuning);
LinkPlan plan_link(const Collective& collective, int rank, int size, int peer, const LinkTuning& tuning);

}  // namespace lockstep
