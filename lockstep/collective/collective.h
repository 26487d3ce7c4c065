// A Collective is one rank's description of one collective call: what it does and which local memory it touches.
// An Engine runs it together with the other ranks. group -> collective -> transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/error.h"
#include "lockstep/collective/call_report.h"
#include "lockstep/collective/op_kind.h"
#include "lockstep/health/peer_failure.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

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
  // What the caller calls this data (a bucket, a tensor's name), as note_name() returned it; 0: nameless. And a number
  // that goes with it, which may be another one each time. Ranks must agree on both.
  std::uint64_t name = 0;
  std::uint64_t number = 0;
  // Of the source, where the call is, for those that have no name; 0: not known. See CallSites.
  std::uint16_t line = 0;
  std::span<const Segment> input = {};
  std::span<const Segment> output = {};
  std::span<const std::uint64_t> counts = {};  // of all_to_all
  FlightTicket ticket = {};                    // its flight record, if it had to wait for its turn
};

// What all ranks must agree on before data moves. Trivially copyable; 40 bytes; it travels in front of the data.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t name = 0;  // with the number added
  std::int32_t root = 0;
  std::uint32_t check = 0;  // of all others, where they travel over a network: see check_of()
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  Order order = Order::ranks;
  std::uint16_t generation = 0;  // the low bits; all of it was compared when the ranks met
  std::uint16_t line = 0;        // see Collective::line; last, since it may differ

  // But for the line.
  bool agrees_with(const Signature& other) const;
  friend bool operator==(const Signature& a, const Signature& b) { return a.agrees_with(b); }
};
inline constexpr std::size_t kAgreedBytes = offsetof(Signature, line);
inline bool Signature::agrees_with(const Signature& other) const {
  return std::memcmp(this, &other, kAgreedBytes) == 0;
}
static_assert(std::has_unique_object_representations_v<Signature>);
static_assert(sizeof(Signature) == 40);

Signature signature_of(const Collective& collective, std::uint64_t sequence, std::uint64_t generation);
// Another number for any two signatures that differ in few bits.
std::uint32_t check_of(const Signature& signature);
// "all_reduce(sum) #12 of 1024 float32" and, where they matter, root and name. name: its text, where another rank has
// told it; else this process's own.
std::string describe(const Signature& signature, std::string_view name = {});
// As the flight recorder keeps it.
FlightRecord record_of(const Signature& signature);

// What a rank came with.
struct CallSide {
  int rank = -1;
  std::string who;  // "rank 2 (host b, pid 71)"
  Signature signature;
  CallReport account = {};
};

// What is made of calls that are equal but for the line of the source that they are in, and have no name. Programs may
// have reasons (one rank broadcasts where the others have another branch), and two calls that were swapped look the
// same.
//   free        nothing
//   warn        a warning, once, for calls that have no root: ranks seldom come to those from different lines
//   must_match  they are different calls
enum class CallSites { free, warn, must_match };
// The warning.
std::string describe_other_line(const std::string& who, const Signature& theirs, const Signature& mine);
// Whether to give it.
bool is_other_line(const Signature& theirs, const Signature& mine);

// Error{desync} on `rank` for ranks that came with different signatures. The text shows what all sides do, this rank's
// first, and what failed on them before.
Error desync_error(int rank, std::vector<CallSide> sides);
// That a rank has gone, which `waiter` waits for in a collective: "rank 2 (host b, pid 71) has left the group after 46
// collectives; rank 0 waits for it in barrier #47", and what to do about it.
PeerFailure departure_in(const Signature& wanted, const std::string& name, Departure how, const std::string& waiter);
// Whether ranks that found such a difference, and nothing else, can go on with their next calls.
bool can_go_on(const std::vector<CallSide>& sides);

// Throws Error{invalid_argument} unless sizes, root and the reduction fit n ranks and the dtype. Called before anything
// is sent.
void check_arguments(const Collective& collective, int rank, int size);

}  // namespace lockstep
