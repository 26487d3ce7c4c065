// The link plan says which bytes a rank exchanges with each peer in one collective over links, and what it reduces.
// Pure.
//
// A link carries, in this order: ranges of the sender's operand, which are ready from the start; what the sender has
// reduced, as it goes; ranges of the sender's output, sent on as they become ready. What arrives is a row to be reduced
// (the peer's operand, or the partial sum of the ranks before it), then ranges of the receiver's output.
//
// Collectives take one of three routes:
//
//   flat        All ranks exchange with each other.
//   two_levels  Large data, where ranks share nodes (node_plan.h).
//   tree        Small data in a group of many ranks (tree_plan.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/collective/byte_range.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/topology.h"

namespace lockstep::internal {

// Sizes at which algorithms change over. All ranks of a group use the same.
struct LinkTuning {
  // Up to this size every rank sends everything to everybody, which takes one exchange instead of two, or all goes in a
  // tree.
  std::size_t small_bytes = std::size_t{16} << 10;
  // A group has trees from this many ranks on: if ranks share nodes, and if each has a separate node. In the latter
  // case a tree is not only fewer messages, but also more of them in sequence.
  int tree_ranks = 4;
  int tree_lone_ranks = 8;
  // After this long a rank that waits in a tree announces its call to all others.
  Duration announce_after = std::chrono::milliseconds(100);
  // What is reduced at once; a multiple of 64.
  std::size_t chunk_bytes = std::size_t{128} << 10;
  // How many chunks of a peer may wait for the other peers'.
  std::size_t window_chunks = 4;
};

enum class Route : std::uint8_t { flat, two_levels, tree };
Route route_of(const Collective& collective, const Topology& topology, const LinkTuning& tuning);

// What a rank reduces, and what all of its links have in common.
struct ReductionPlan {
  // The operand travels behind the signature, in one piece, to every peer.
  bool whole = false;
  // Ranges of the operand that are reduced, one behind the other: the rows of ranks [first_row, end_row), behind the
  // partial sum of carried_from, if there is one. -1: none.
  std::vector<ByteRange> own = {};
  int first_row = 0;
  int end_row = 0;
  int carried_from = -1;
  // The result is a partial sum, to which carried_to adds more. -1: it is the result of all ranks.
  int carried_to = -1;
  // The part of what is reduced that goes into this rank's output, and where.
  ByteRange kept = {};
  std::size_t kept_at = 0;

  // Keeps the list's memory.
  void clear() {
    own.clear();
    *this = {.own = std::move(own)};
  }
};

// A run of bytes that a rank sends to a peer. `ready` says where they lie, and when they may go:
//
//   at_once     in the operand
//   as_reduced  in what this rank reduces and does not keep, as far as it has come
//   as_kept     in the output: what this rank reduces and keeps, as far as it has come
//   as_received in the output, as they arrive from rank `from`
struct SendRange {
  enum class Ready : std::uint8_t { at_once, as_reduced, as_kept, as_received };
  Ready ready = Ready::at_once;
  ByteRange range = {};
  int from = -1;
};

struct LinkPlan {
  std::vector<SendRange> send = {};
  std::vector<ByteRange> receive = {};  // into the output, behind the row

  void clear() {
    send.clear();
    receive.clear();
  }
};

// Both overwrite `plan`, whose memory is used again. REQUIRES: check_arguments() has passed; route is that of
// route_of(), and not the tree.
void plan_reduction(const Collective& collective, int rank, const Topology& topology, Route route,
                    const LinkTuning& tuning, ReductionPlan& plan);
void plan_link(const Collective& collective, int rank, const Topology& topology, int peer, Route route,
               const LinkTuning& tuning, LinkPlan& plan);

// Empty ranges are left out.
inline void add(std::vector<ByteRange>& list, ByteRange range) {
  if (range.bytes() != 0) list.push_back(range);
}
inline void add(std::vector<SendRange>& list, SendRange::Ready ready, ByteRange range, int from = -1) {
  if (range.bytes() != 0) list.push_back({ready, range, from});
}

}  // namespace lockstep::internal
