// The CarrierRounds take the data of a collective through a carrier's buffers, in rounds of bounded size.
// CarrierEngine -> CarrierRounds -> Carrier. Thread rule: as Carrier. Throws what the carrier throws.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/adapters/carrier.h"
#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// What a library can reduce.
using Reductions = bool (*)(ReduceOp op, DType dtype);
// What can be done over it.
bool supports(OpKind kind, ReduceOp op, DType dtype, Reductions library);

class CarrierRounds {
 public:
  // Borrows the carrier.
  CarrierRounds(Carrier& carrier, int rank, int size, std::size_t buffer_bytes)
      : carrier_(carrier), rank_(rank), size_(size), buffer_bytes_(buffer_bytes) {}

  // Blocks until the output is complete. REQUIRES: all ranks come with the same collective.
  void run(const Collective& collective, Deadline deadline);
  // The same number of bytes of all ranks, in rank order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline);

 private:
  // The parts [begin, begin + count) of every rank's elements.
  void run_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline);
  void run_all_to_all_round(const Collective& collective, std::size_t begin, std::size_t count, Deadline deadline);
  void pack(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes);
  void unpack(const std::byte* from, std::span<const Segment> to, std::size_t offset, std::size_t bytes);

  Carrier& carrier_;
  const int rank_;
  const int size_;
  const std::size_t buffer_bytes_;
};

}  // namespace lockstep::internal
