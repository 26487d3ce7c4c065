// The staged way of the ArenaEngine: operands that lie anywhere pass through the staging buffers in cache-sized chunks.
//
// Chunk c uses staging buffer c mod 3 of every rank. A rank fills its buffer for chunk c + 1 while others still reduce
// chunk c. It may: the buffer was last used for chunk c - 2, and whoever has filled chunk c has done all it had to do
// with chunk c - 2.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

// How to write into a staging buffer that another core has read: with ordinary stores, or with non-temporal ones, which
// bypass the cache. Ordinary ones are twice as fast between cores that share a cache, non-temporal ones four times as
// fast between cores that do not. On a virtual machine that can change while a program runs, so both are timed now and
// then.
class StagingWriter {
 public:
  // Copies `bytes` bytes that start `offset` bytes into the list. `to` is aligned to 64 bytes.
  void write(std::span<const Segment> from, std::size_t offset, std::byte* to, std::size_t bytes);
  // Whether large writes are non-temporal.
  bool streams() const { return streams_; }

 private:
  bool streams_ = false;
  double seconds_per_byte_[2] = {0, 0};  // ordinary and non-temporal; 0: not timed yet
  int writes_ = 0;
};

// How many elements of `element` bytes a chunk has of each of `parts` parts: whole cache lines if they fit, at least 1.
std::size_t elements_of_chunk(std::size_t element, std::size_t parts);

// What one staged collective needs. `chunk` counts chunks over all collectives of the group and is advanced.
struct StagedCall {
  const Arena& arena;
  const Collective& collective;
  std::uint32_t& chunk;
  StagingWriter& writer;
  std::span<const std::byte*> inputs;  // scratch, one entry a rank
  Deadline deadline;
  std::function<Error(const WaitFailure&)> explain;
};

// Blocks until this rank's output is complete. All ranks have posted this collective. Throws as Engine::run does.
void run_staged(StagedCall& call);

}  // namespace lockstep::internal
