// Thousands of random collectives, of every kind, type and reduction, of odd sizes, cut into odd pieces.
#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "lockstep/base/format.h"
#include "lockstep/collective/piece.h"
#include "tests/contract/engine/operands.h"
#include "tests/support/rank_threads.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCases = 100;
#else
constexpr int kCases = 500;
#endif

// One collective; the same on all ranks. Element counts of every rank's input and output.
struct Case {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::f32;
  int root = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts = {};
  int seed = 0;
};

std::uint64_t random_count(std::mt19937& random) {
  switch (random() % 10) {
    case 0: return 0;
    case 1: return random() % 90'000;
    case 2: return random() % 9000;
    default: return random() % 200;
  }
}

Case random_case(std::mt19937& random, int ranks, int seed) {
  Case made;
  made.seed = seed;
  made.kind = static_cast<OpKind>(random() % 9);
  made.dtype = kReducible[random() % std::size(kReducible)];
  do {
    made.reduce = kReductions[random() % std::size(kReductions)];
  } while (!supports(made.reduce, made.dtype));
  const bool reduces =
      made.kind == OpKind::all_reduce || made.kind == OpKind::reduce || made.kind == OpKind::reduce_scatter;
  if (!reduces && random() % 4 == 0) made.dtype = DType::opaque;
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
std::pair<std::uint64_t, std::uint64_t> sizes_of(const Case& c, int rank, int ranks) {
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

std::vector<Segment> cut(const Segment& whole, std::size_t element, std::mt19937& random) {
  std::vector<Segment> pieces;
  for (std::size_t at = 0; at < whole.bytes;) {
    const std::size_t most = (whole.bytes - at) / element;
    const std::size_t length = random() % 3 == 0 ? most : random() % most + 1;
    pieces.push_back({whole.data + at, length * element});
    at += length * element;
  }
  return pieces;
}

Buffer operand_of(Engine& engine, const Case& c, int rank, int ranks) {
  const auto [input, output] = sizes_of(c, rank, ranks);
  const bool in_place = c.kind == OpKind::all_reduce || c.kind == OpKind::reduce || c.kind == OpKind::broadcast;
  return Operand(engine, Place::ordinary, c.dtype, in_place ? output : input, c.seed + rank).copy();
}

// What the output of a rank must be.
Buffer expected_of(Engine& engine, const Case& c, int rank, int ranks) {
  std::vector<Buffer> operands;
  for (int peer = 0; peer < ranks; ++peer) operands.push_back(operand_of(engine, c, peer, ranks));
  if (c.kind == OpKind::broadcast) return operands[static_cast<std::size_t>(c.root)];
  if (c.kind == OpKind::all_reduce || c.kind == OpKind::reduce) return reduced(operands, c.dtype, c.reduce);
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

void run_case(Engine& engine, const Case& c, std::mt19937& own, Over over) {
  const int rank = engine.rank(), ranks = engine.size();
  const std::size_t element = element_size(c.dtype);
  const auto [input_count, output_count] = sizes_of(c, rank, ranks);
  const auto place = [&] { return over == Over::arena && own() % 2 == 0 ? Place::arena : Place::ordinary; };
  const Operand input(engine, place(), c.dtype, input_count, c.seed + rank);
  const Operand output(engine, place(), c.dtype, output_count, c.seed + rank);
  const std::vector<Segment> from = cut(input.segment(), element, own), to = cut(output.segment(), element, own);
  engine.run({.kind = c.kind,
              .reduce = c.reduce,
              .dtype = c.dtype,
              .root = c.root,
              .count = c.count,
              .input = from,
              .output = to,
              .counts = c.counts},
             soon());
  const bool is_lost = c.kind == OpKind::reduce && rank != c.root;
  if (is_lost || output.copy() == expected_of(engine, c, rank, ranks)) return;
  throw std::runtime_error(fmt::format("rank {} of {}: wrong result of {}({}) of {} {}, root {}, case {}", rank, ranks,
                                       to_string(c.kind), to_string(c.reduce), c.count, to_string(c.dtype), c.root,
                                       c.seed));
}

void run_cases(Over over, int ranks) {
  Engines engines = make_engines(ranks, over);
  run_ranks_or_throw(ranks, [&](int rank) {
    std::mt19937 shared(static_cast<unsigned>(ranks));     // the same choices on all ranks
    std::mt19937 own(static_cast<unsigned>(rank) + 1000);  // where this rank's operands lie and are cut
    for (int i = 0; i < kCases; ++i) {
      run_case(*engines[static_cast<std::size_t>(rank)], random_case(shared, ranks, i), own, over);
    }
  });
}

}  // namespace

TEST_CASE("random collectives over the arena") {
  for (const int ranks : {1, 2, 3, 4, 7}) run_cases(Over::arena, ranks);
}

TEST_CASE("random collectives over links") {
  for (const int ranks : {1, 2, 3, 4, 7}) run_cases(Over::links, ranks);
}

TEST_CASE("random collectives among nodes of two ranks") {
  for (const int ranks : {3, 4, 7}) run_cases(Over::nodes, ranks);
}
