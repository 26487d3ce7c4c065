// The kinds of collectives, and what each does, as a table. A new collective that has an input is one row here; one
// that works in place also needs an algorithm in each engine. Pure.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/collective/reduce_op.h"

namespace lockstep {

enum class OpKind : std::uint8_t {  // the collectives
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  barrier,
  reduce,
  gather,
  scatter,
  all_to_all,
  scan,
  exclusive_scan
};

std::string_view to_string(OpKind kind);  // "all_reduce"

// Whether all engines can do it: every type can be moved, and reduced as reduce_op.h says.
bool supports(OpKind kind, ReduceOp op, DType dtype);

namespace internal {

// How much a collective's input or output holds, for `count` elements and n ranks.
//   none         nothing
//   one          count elements
//   all          n parts of count elements, one for each rank, in rank order
//   all_on_root  the same on the root, nothing elsewhere
//   counted      a part for each rank, of the size in Collective::counts
enum class Extent : std::uint8_t { none, one, all, all_on_root, counted };

enum class Root : std::uint8_t { none, sends, receives };  // what the root does

// Whose data are in a rank's result, unless it depends on the root.
enum class From : std::uint8_t { all, up_to_own, before_own };

struct RankRange {
  int begin = 0;
  int end = 0;  // the first after it

  constexpr bool holds(int rank) const { return rank >= begin && rank < end; }
};

struct OpTraits {
  OpKind kind = OpKind::barrier;
  std::string_view name;
  Extent input = Extent::none;
  Extent output = Extent::none;
  bool reduces = false;
  Root root = Root::none;
  From from = From::all;

  constexpr bool has_root() const { return root != Root::none; }
  constexpr bool moves_data() const { return output != Extent::none; }
  // The output is the operand, too.
  constexpr bool is_in_place() const { return moves_data() && input == Extent::none; }
  constexpr bool reduces_in_place() const { return reduces && is_in_place(); }
  // It only moves pieces of inputs to outputs; see piece.h.
  constexpr bool moves_pieces() const { return !reduces && input != Extent::none; }
  // The input, or the output, is a list of parts of equal size.
  constexpr bool takes_parts() const { return input == Extent::all || input == Extent::all_on_root; }
  constexpr bool gives_parts() const { return output == Extent::all || output == Extent::all_on_root; }

  constexpr bool has_result(int rank, int root_rank) const { return root != Root::receives || rank == root_rank; }
  // Whose data are in a rank's result.
  constexpr RankRange sources(int rank, int root_rank, int ranks) const {
    if (!has_result(rank, root_rank)) return {};
    if (root == Root::sends) return {root_rank, root_rank + 1};
    return {0, from == From::all ? ranks : from == From::up_to_own ? rank + 1 : rank};
  }
  // Whether this number of ranks can reduce in Order::tree.
  constexpr bool has_tree(int ranks) const {
    return from == From::all && std::has_single_bit(static_cast<unsigned>(ranks));
  }
};

// By kind. Lists of segments are read as if joined. Operations in place use the output, and have no input: a
// broadcast's is read on the root and written elsewhere, and a reduce leaves it unspecified except on the root. An
// all_to_all's counts say what goes from each rank to each.
inline constexpr auto kOpTable = [] {
  using enum Extent;
  return std::to_array<OpTraits>({
      {.kind = OpKind::all_reduce, .name = "all_reduce", .output = one, .reduces = true},
      {.kind = OpKind::broadcast, .name = "broadcast", .output = one, .root = Root::sends},
      {.kind = OpKind::all_gather, .name = "all_gather", .input = one, .output = all},
      {.kind = OpKind::reduce_scatter, .name = "reduce_scatter", .input = all, .output = one, .reduces = true},
      {.kind = OpKind::barrier, .name = "barrier"},
      {.kind = OpKind::reduce, .name = "reduce", .output = one, .reduces = true, .root = Root::receives},
      {.kind = OpKind::gather, .name = "gather", .input = one, .output = all_on_root, .root = Root::receives},
      {.kind = OpKind::scatter, .name = "scatter", .input = all_on_root, .output = one, .root = Root::sends},
      {.kind = OpKind::all_to_all, .name = "all_to_all", .input = counted, .output = counted},
      {.kind = OpKind::scan, .name = "scan", .input = one, .output = one, .reduces = true, .from = From::up_to_own},
      {.kind = OpKind::exclusive_scan,
       .name = "exclusive_scan",
       .input = one,
       .output = one,
       .reduces = true,
       .from = From::before_own},
  });
}();

static_assert([] {
  for (std::size_t i = 0; i < kOpTable.size(); ++i) {
    if (kOpTable[i].kind != static_cast<OpKind>(i)) return false;
  }
  return true;
}());

constexpr bool is_valid(OpKind kind) { return static_cast<std::size_t>(kind) < kOpTable.size(); }  // is in the table
// Of an invalid kind: those of an operation that moves nothing.
constexpr const OpTraits& traits_of(OpKind kind) {
  constexpr const OpTraits& kUnknown = kOpTable[static_cast<std::size_t>(OpKind::barrier)];
  return is_valid(kind) ? kOpTable[static_cast<std::size_t>(kind)] : kUnknown;
}

}  // namespace internal
}  // namespace lockstep
