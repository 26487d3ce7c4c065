// A Collective is one rank's description of one collective call: what it does and which local memory it touches.
// An Engine runs it together with the other ranks. group -> collective -> transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/dtype.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/comm/collective/op_kind.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {

// A run of `bytes` bytes of local memory, a multiple of the element size.
struct Segment {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// Who moves the data of a collective: the engine; or the communicator of a device, while the engine only compares what
// the ranks call. The first call that is moved so makes the communicator. The values that follow are the same two for
// the second device of a rank, and so on: see DeviceCalls::Line.
enum class Mover : std::uint8_t { engine, device, new_device };

// kOpTable says what `input` and `output` hold, for `count` elements and n ranks. They may not overlap, except that
// all_gather's input may be its own part of the output, and reduce_scatter's output may be its own part of the input.
struct Collective {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  Order order = Order::ranks;
  DType dtype = DType::u8;
  int root = 0;
  std::uint64_t count = 0;
  // The caller's name of this data (a bucket, a tensor's name), as note_name() returned it; 0: nameless. And a number
  // that goes with it, which may change from call to call. Ranks must agree on both.
  std::uint64_t name = 0;
  std::uint64_t number = 0;
  // The source line of a call without a name; 0: not known. See CallSites.
  std::uint16_t line = 0;
  std::span<const Segment> input = {};
  std::span<const Segment> output = {};
  // Of all_to_all, whose count is 0: n x n, the same on all ranks: counts[i * n + j] elements go from rank i to rank j.
  std::span<const std::uint64_t> counts = {};
  FlightTicket ticket = {};  // its flight record, if it had to wait for its turn
  // Of what is run on behalf of another collective, whose signature it has; read by post() only. Null: of none.
  const Collective* as = nullptr;
  Mover mover = Mover::engine;
};

// Throws Error{invalid_argument} unless sizes, root and the reduction fit n ranks and the dtype. Called before anything
// is sent.
void check_arguments(const Collective& collective, int rank, int size);

}  // namespace lockstep::internal
