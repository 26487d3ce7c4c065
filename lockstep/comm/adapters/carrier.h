// A Carrier is a communication library that is not ours (Gloo, MPI), seen as one verb: it moves or reduces plain
// buffers among the ranks of a group. group -> CarrierEngine -> Carrier. Called from one thread at a time, except
// interrupt(), which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

// What a Carrier or a Communicator is asked to do. A Carrier's buffers are those that buffers() gave; sizes are as in
// Collective. What all_reduce, reduce and broadcast work on lies in `output`.
struct CarrierCall {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  int root = 0;
  std::size_t count = 0;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::span<const std::size_t> sent = {};      // of all_to_all: elements to each rank
  std::span<const std::size_t> received = {};  // and from each
};

struct CarrierBuffers {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
};

class Carrier {
 public:
  virtual ~Carrier() = default;

  virtual std::string_view name() const = 0;
  // Memory of that many bytes for the next run(), until the next call. Its contents are unspecified.
  virtual CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) = 0;
  // Copies between such memory and the tensors' own, or a plain variable.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Blocks until the output is complete or the deadline has passed. Error{timeout}, {peer_lost} or {internal}, which
  // quotes the library; after any of them it is not called again.
  // REQUIRES: what the library can reduce, see BackendEntry; everything can be moved.
  virtual void run(const CarrierCall& call, Deadline deadline) = 0;
  // Makes a run() that is under way fail soon, here and, where the library has the means, on the other ranks.
  virtual void interrupt() noexcept = 0;
};

// Where a carrier is to be made: who the ranks are, and where they meet.
struct CarrierSite {
  int rank = 0;
  int size = 1;
  std::uint64_t generation = 0;
  std::string group;                 // the same on all ranks, and no other group's
  std::string address;               // at which the others reach this rank
  std::vector<std::string> members;  // by rank, as errors name them
  std::shared_ptr<Store> store;
  std::size_t buffer_bytes = std::size_t{64} << 20;  // of data on its way; more goes in rounds. The same on all ranks
  // Throws if the group has ended. A library that does not notice by itself asks now and then while it waits; each time
  // costs a round trip to the store, which is not waited for beyond the deadline.
  std::function<void(Deadline)> check_alive = [](Deadline) {};
};

}  // namespace lockstep::internal
