// The chunk plan says which bytes a rank exchanges with each peer in one collective over links. Pure.
//
// A link carries, in this order: ranges of the sender's operand, which are ready from the start; what the sender has
// reduced, partly or for good, as it goes; ranges of the sender's output, sent on as they become ready. What arrives is
// a row to be reduced, which is the peer's operand or what the ranks before it have made of theirs, and ranges that go
// straight into the output.
//
// Without nodes (see topology.h) all ranks exchange with each other. With nodes, a large collective goes in two levels:
//   all_reduce, reduce   Lane i owns slice i. On each node its rank reduces the node's rows, in rank order and behind
//                        what arrives from the node before, and hands that on to the next node. The last one has the
//                        result, which comes back the same way, from node to node, each telling its own ranks. So a
//                        node sends and receives each byte at most twice, once each with two nodes, and element i is
//                        still ((x0 + x1) + x2) + ... in rank order.
//   broadcast            The root deals slices to its node's lanes; each goes from node to node, and within each.
//   all_gather           Each rank tells its lane on the other nodes, and what it hears from there the ranks of its
//                        node.
//   reduce_scatter       Lane i reduces the blocks of all ranks in lane i, and its share of those beyond the lanes',
//                        from node to node like all_reduce; the last node hands each block to its rank.
// What is small goes in a tree (tree_plan.h) in a group of many ranks; then links carry nothing of this.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/collective/byte_range.h"
#include "lockstep/collective/collective.h"
#include "lockstep/collective/topology.h"

namespace lockstep {

// Sizes at which algorithms change over. All ranks of a group use the same.
struct LinkTuning {
  // Up to this size every rank sends everything to everybody, which takes one exchange instead of two, or all goes in a
  // tree.
  std::size_t small_bytes = std::size_t{16} << 10;
  // A group has trees from so many ranks on: if ranks share nodes, and if each has one of its own. Among the latter a
  // tree is not only fewer messages, but also more of them one after the other.
  int tree_ranks = 4;
  int tree_lone_ranks = 8;
  // After this long a rank of a tree shows all others its signature, and looks at theirs.
  Duration tell_all_after = std::chrono::milliseconds(100);
  // What is reduced at once; a multiple of 64.
  std::size_t chunk_bytes = std::size_t{128} << 10;
  // How many chunks of a peer may wait for the other peers'.
  std::size_t window_chunks = 4;
};

inline constexpr int kReducedHere = -1;

// The next so many bytes of what a rank has reduced are the result of rank `to`, perhaps itself.
struct Delivery {
  std::size_t bytes = 0;
  int to = -1;
};

// What all links of this rank have in common.
struct ChunkPlan {
  // The operand is the output (all_reduce, reduce, broadcast), not the input.
  bool in_place = false;
  // This rank's whole operand travels behind its signature, in one piece.
  bool whole = false;
  // It travels in a tree. This rank reduces all rows or, if `own` is empty, none.
  bool in_tree = false;
  // What this rank reduces: `own` of its operand, one range behind the other, with the rows of ranks [first_row,
  // end_row), and before them what carried_from has made of it.
  std::vector<ByteRange> own = {};
  int first_row = 0;
  int end_row = 0;
  int carried_from = -1;
  // More is added to it by carried_to. Or else it goes, as far as it is this rank's, into this range of the output; all
  // of it if there are no deliveries.
  int carried_to = -1;
  std::vector<Delivery> deliveries = {};
  ByteRange result = {};

  // Nothing to be done; keeps the lists' memory.
  void clear() {
    own.clear();
    deliveries.clear();
    *this = {.own = std::move(own), .deliveries = std::move(deliveries)};
  }
};

// A range of this rank's output that it passes on, and where it comes from: the rank that sends it here, this rank
// itself, or kReducedHere.
struct Passed {
  ByteRange range;
  int source = kReducedHere;
};

// One link. Ranges of the operand and of this rank's output.
struct LinkPlan {
  std::vector<ByteRange> send_operand = {};
  std::vector<Passed> send_results = {};
  std::vector<ByteRange> receive = {};  // into the output, behind the row
};

// Whether what is small takes the way of a tree.
bool has_trees(const Topology& topology, const LinkTuning& tuning);

// Both overwrite `plan`, whose memory is used again. REQUIRES: check_arguments() has passed.
void plan_chunks(const Collective& collective, int rank, const Topology& topology, const LinkTuning& tuning,
                 ChunkPlan& plan);
void plan_link(const Collective& collective, int rank, const Topology& topology, int peer, const LinkTuning& tuning,
               LinkPlan& plan);

}  // namespace lockstep
