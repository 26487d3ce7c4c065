// Collectives whose operands and results any rank can compute by itself: at random, or one for each cell of the table
// of what an engine supports. The ranks may be threads or processes.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/piece.h"
#include "tests/contract/engine/operands.h"

namespace lockstep::testing {

using namespace internal;

// One collective; the same on all ranks. Element counts of every rank's input and output.
struct Case {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::f32;
  int root = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts = {};
  int seed = 0;
  std::uint64_t name = 0;
};

inline std::uint64_t random_count(std::mt19937& random) {
  switch (random() % 10) {
    case 0: return 0;
    case 1: return random() % 90'000;
    case 2: return random() % 9000;
    default: return random() % 200;
  }
}

inline Case random_case(std::mt19937& random, int ranks, int seed) {
  Case made;
  made.seed = seed;
  made.kind = static_cast<OpKind>(random() % std::size(kOpTable));
  made.dtype = kReducible[random() % std::size(kReducible)];
  do {
    made.reduce = kReductions[random() % std::size(kReductions)];
  } while (!supports(made.reduce, made.dtype));
  if (!traits_of(made.kind).reduces && random() % 4 == 0) made.dtype = DType::opaque;
  made.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  if (made.kind == OpKind::barrier) return made;
  if (made.kind != OpKind::all_to_all) {
    made.count = random_count(random);
    return made;
  }
  for (int i = 0; i < ranks * ranks; ++i) made.counts.push_back(random_count(random) / 4);
  return made;
}

// Elements of a rank's input and output.
inline std::pair<std::uint64_t, std::uint64_t> sizes_of(const Case& c, int rank, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const bool is_root = rank == c.root;
  switch (c.kind) {
    case OpKind::barrier: return {0, 0};
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast: return {0, c.count};
    case OpKind::all_gather: return {c.count, n * c.count};
    case OpKind::reduce_scatter: return {n * c.count, c.count};
    case OpKind::gather: return {c.count, is_root ? n * c.count : 0};
    case OpKind::scatter: return {is_root ? n * c.count : 0, c.count};
    case OpKind::scan:
    case OpKind::exclusive_scan: return {c.count, c.count};
    case OpKind::all_to_all: break;
  }
  std::uint64_t sent = 0, received = 0;
  const auto me = static_cast<std::uint64_t>(rank);
  for (std::uint64_t peer = 0; peer < n; ++peer) {
    sent += c.counts[me * n + peer];
    received += c.counts[peer * n + me];
  }
  return {sent, received};
}

inline std::vector<Segment> cut(const Segment& whole, std::size_t element, std::mt19937& random) {
  std::vector<Segment> pieces;
  for (std::size_t at = 0; at < whole.bytes;) {
    const std::size_t most = (whole.bytes - at) / element;
    const std::size_t length = random() % 3 == 0 ? most : random() % most + 1;
    pieces.push_back({whole.data + at, length * element});
    at += length * element;
  }
  return pieces;
}

inline Buffer operand_of(Engine& engine, const Case& c, int rank, int ranks) {
  const auto [input, output] = sizes_of(c, rank, ranks);
  const bool is_in_place = traits_of(c.kind).is_in_place();
  return Operand(engine, Place::ordinary, c.dtype, is_in_place ? output : input, c.seed + rank).copy();
}

// What the output of a rank must be.
inline Buffer expected_of(Engine& engine, const Case& c, int rank, int ranks) {
  std::vector<Buffer> operands;
  for (int peer = 0; peer < ranks; ++peer) operands.push_back(operand_of(engine, c, peer, ranks));
  if (c.kind == OpKind::broadcast) return operands[static_cast<std::size_t>(c.root)];
  if (c.kind == OpKind::all_reduce || c.kind == OpKind::reduce) return reduced(operands, c.dtype, c.reduce);
  if (c.kind == OpKind::scan || c.kind == OpKind::exclusive_scan) {
    operands.resize(static_cast<std::size_t>(c.kind == OpKind::scan ? rank + 1 : rank));
    return operands.empty() ? identity(c.count, c.dtype, c.reduce) : reduced(operands, c.dtype, c.reduce);
  }
  Buffer output(sizes_of(c, rank, ranks).second * element_size(c.dtype));
  if (c.kind == OpKind::reduce_scatter) {
    const Buffer sum = reduced(operands, c.dtype, c.reduce);
    std::copy_n(sum.data() + output.size() * static_cast<std::size_t>(rank), output.size(), output.data());
    return output;
  }
  Collective collective{.kind = c.kind, .dtype = c.dtype, .root = c.root, .count = c.count, .counts = c.counts};
  for (int peer = 0; peer < ranks; ++peer) {
    const Piece piece = piece_of(collective, ranks, peer, rank);
    std::copy_n(operands[static_cast<std::size_t>(peer)].data() + piece.input_offset, piece.bytes,
                output.data() + piece.output_offset);
  }
  return output;
}

template <class T>
T read(const Buffer& buffer, std::size_t index) {
  T value;
  std::memcpy(&value, buffer.data() + index * sizeof value, sizeof value);
  return value;
}

inline std::string text_of(const Case& c) {
  return std::string(to_string(c.kind)) + "(" + std::string(to_string(c.reduce)) + ") of " + std::to_string(c.count) +
         " " + std::string(to_string(c.dtype)) + ", root " + std::to_string(c.root);
}

inline bool is_near(double got, double wanted, double tolerance) {
  return got == wanted || std::abs(got - wanted) <= tolerance * std::max(1.0, std::abs(wanted));
}

// Whether two buffers hold the same numbers, but for what another order of addition may change.
inline bool are_near(const Buffer& got, const Buffer& wanted, DType dtype) {
  if (!is_floating_point(dtype) && !is_complex(dtype)) return got == wanted;
  if (got.size() != wanted.size()) return false;
  const bool is_double = dtype == DType::f64 || dtype == DType::c128;
  const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
  const std::size_t bytes = is_double ? 8 : is_half ? 2 : 4;
  const double tolerance = is_double ? 1e-13 : dtype == DType::bf16 ? 0.04 : is_half ? 0.005 : 1e-5;
  const auto number = [&](const Buffer& buffer, std::size_t i) -> double {
    if (is_double) return read<double>(buffer, i);
    if (!is_half) return read<float>(buffer, i);
    const auto bits = read<std::uint16_t>(buffer, i);
    if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
  };
  for (std::size_t i = 0; i < got.size() / bytes; ++i) {
    if (!is_near(number(got, i), number(wanted, i), tolerance)) return false;
  }
  return true;
}

// Where operands lie: in ordinary memory, or some of them in the arena.
enum class Where { ordinary, arena };
// What a reduction's result is compared by: engines that add up in rank order give the same bits.
enum class Match { bits, value };

// One rank's call of a case, with its operands cut into pieces at random.
class Attempt {
 public:
  Attempt(Engine& engine, const Case& c, std::mt19937& own, Where where)
      : engine_(engine),
        case_(c),
        input_(engine, place(own, where), c.dtype, sizes_of(c, engine.rank(), engine.size()).first, seed()),
        output_(engine, place(own, where), c.dtype, sizes_of(c, engine.rank(), engine.size()).second, seed()),
        from_(cut(input_.segment(), element_size(c.dtype), own)),
        to_(cut(output_.segment(), element_size(c.dtype), own)) {}

  // Borrows the case's counts and this object's operands.
  Collective collective() const {
    return {.kind = case_.kind,
            .reduce = case_.reduce,
            .dtype = case_.dtype,
            .root = case_.root,
            .count = case_.count,
            .name = case_.name,
            .input = from_,
            .output = to_,
            .counts = case_.counts};
  }

  // Throws if the call, which has succeeded, made something else of the output than it should.
  void check_result(Match match) const {
    const int rank = engine_.rank(), ranks = engine_.size();
    if (case_.kind == OpKind::reduce && rank != case_.root) return;  // its contents are lost
    const Buffer expected = expected_of(engine_, case_, rank, ranks), got = output_.copy();
    if (match == Match::bits ? got == expected : are_near(got, expected, case_.dtype)) return;
    throw std::runtime_error("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": wrong result of " +
                             text_of(case_) + ", case " + std::to_string(case_.seed));
  }

  // Whether both operands are what they were at first.
  bool is_untouched() const {
    const auto [input, output] = sizes_of(case_, engine_.rank(), engine_.size());
    return input_.copy() == Operand(engine_, Place::ordinary, case_.dtype, input, seed()).copy() &&
           output_.copy() == Operand(engine_, Place::ordinary, case_.dtype, output, seed()).copy();
  }

 private:
  static Place place(std::mt19937& own, Where where) {
    return where == Where::arena && own() % 2 == 0 ? Place::arena : Place::ordinary;
  }
  int seed() const { return case_.seed + engine_.rank(); }

  Engine& engine_;
  const Case& case_;
  const Operand input_;
  const Operand output_;
  const std::vector<Segment> from_;
  const std::vector<Segment> to_;
};

inline void run_case(Engine& engine, const Case& c, std::mt19937& own, Where where, Match match) {
  const Attempt attempt(engine, c, own, where);
  engine.run(attempt.collective(), soon());
  attempt.check_result(match);
}

// A case of one cell of the table that supports() is.
inline Case case_of(OpKind kind, ReduceOp op, DType dtype, int ranks, int seed) {
  Case made{.kind = kind, .reduce = op, .dtype = dtype, .root = seed % ranks, .seed = seed};
  if (kind == OpKind::barrier) return made;
  if (kind != OpKind::all_to_all) {
    made.count = 37;
    return made;
  }
  for (int i = 0; i < ranks * ranks; ++i) made.counts.push_back(static_cast<std::uint64_t>((i * 5 + seed) % 19));
  return made;
}

// Walks the whole table of what an engine supports: every "yes" works, every "no" is refused in words, and neither
// keeps the next one from working. All ranks call it. How many cells were refused.
inline int walk_table(Engine& engine, Where where, Match match) {
  std::mt19937 own(static_cast<unsigned>(engine.rank()) + 1000);
  int seed = 0, refused = 0;
  for (const OpTraits& traits : kOpTable) {
    const OpKind kind = traits.kind;
    for (int type = 0; type <= static_cast<int>(DType::opaque); ++type) {
      const auto dtype = static_cast<DType>(type);
      for (const ReduceOp op : kReductions) {
        if (!traits.reduces && op != ReduceOp::sum) continue;
        const Case c = case_of(kind, op, dtype, engine.size(), seed++);
        if (engine.supports(kind, op, dtype)) {
          run_case(engine, c, own, where, match);
          continue;
        }
        ++refused;
        try {
          run_case(engine, c, own, where, match);
        } catch (const Error& error) {
          const std::string text = error.what();
          const auto says = [&](std::string_view word) { return text.find(word) != std::string::npos; };
          if (error.kind() != ErrorKind::invalid_argument || !says(to_string(kind)) || !says(to_string(op)) ||
              !says(to_string(dtype))) {
            throw;
          }
          continue;
        }
        throw std::runtime_error(text_of(c) + " is not refused");
      }
    }
  }
  return refused;
}

}  // namespace lockstep::testing
