// A Collective is one rank's description of one collective call: what it does and which local memory it touches.
// An Engine runs it together with the other ranks. group -> collective -> transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/dtype.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

enum class OpKind : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  barrier,
  reduce,
  gather,
  scatter,
  all_to_all
};
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor };

// In which order a reduction takes the ranks' operands. ranks: ((x0 op x1) op x2) ... tree: (x0 op x1) op (x2 op x3),
// and so on upwards, for a power of two of ranks; every pair's result is rounded to the element type, and avg halves
// it. So operands that were reduced in pairs before they came here give the bits of more ranks with one operand each.
enum class Order : std::uint8_t { ranks, tree };

std::string_view to_string(OpKind kind);
std::string_view to_string(ReduceOp op);

// A run of `bytes` bytes of local memory, a multiple of the element size.
struct Segment {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// What is in `input` and `output`, for `count` elements and n ranks; lists of segments are read as if joined:
//   all_reduce      output: count elements, reduced in place             input: unused
//   broadcast       output: count elements, read on root, written else   input: unused
//   all_gather      input: count elements     output: n * count, in rank order
//   reduce_scatter  input: n * count          output: count, this rank's part
//   barrier         both empty, count 0
//   reduce          output: count elements, reduced in place on root, with what it pleases elsewhere   input: unused
//   gather          input: count elements     output: on root n * count, in rank order; else empty
//   scatter         input: on root n * count, else empty     output: count
//   all_to_all      input: what goes to each rank, in rank order     output: what comes from each rank, in rank order
//                   counts: n x n, the same on all ranks: counts[i * n + j] elements go from rank i to rank j; count: 0
// Input and output may not overlap except that all_gather's input may be its own part of the output, and
// reduce_scatter's output may be its own part of the input.
struct Collective {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  Order order = Order::ranks;
  DType dtype = DType::u8;
  int root = 0;
  std::uint64_t count = 0;
  // Hash of what the caller calls this data (a bucket, a tensor's name); ranks must agree. 0: nameless.
  std::uint64_t name = 0;
  std::span<const Segment> input = {};
  std::span<const Segment> output = {};
  std::span<const std::uint64_t> counts = {};  // of all_to_all
  FlightTicket ticket = {};                    // its flight record, if it had to wait for its turn
};

// What all ranks must agree on before data moves. Trivially copyable; 40 bytes; it travels in front of the data.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t name = 0;
  std::uint64_t generation = 0;
  std::int32_t root = 0;
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  Order order = Order::ranks;

  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 40);

Signature signature_of(const Collective& collective, std::uint64_t sequence, std::uint64_t generation);
// "all_reduce(sum) #12 of 1024 float32" and, where they matter, root and name.
std::string describe(const Signature& signature);
// As the flight recorder keeps it.
FlightRecord record_of(const Signature& signature);

// Error{desync} for two ranks that came with different signatures; the text shows both sides.
class Error;
Error desync_error(int rank, const Signature& mine, int peer, const Signature& theirs);

// Whether a reduction can be computed for elements of a type: avg for floating and complex ones, min and max for those
// that have an order, band, bor and bxor for integers and bool. For bool sum means "or" and product means "and".
bool supports(ReduceOp op, DType dtype);
// Whether all engines can do it: every type can be moved, and reduced as above.
bool supports(OpKind kind, ReduceOp op, DType dtype);

// Throws Error{invalid_argument} unless sizes, root and the reduction fit n ranks and the dtype. Called before anything
// is sent.
void check_arguments(const Collective& collective, int rank, int size);

}  // namespace lockstep
