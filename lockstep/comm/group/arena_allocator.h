// Allocates tensors in shared memory: while an ArenaScope lives, large CPU tensors that its thread allocates come
// from an arena's heap instead of malloc. Each keeps its memory mapped for as long as it lives, wherever it is freed.
// The first scope of a process wraps torch's CPU allocator in its own, unless a program has installed one of a higher
// priority. If it has, or installs another one later, scopes have no effect, and callers, which check where a tensor
// lies, fall back to copying. Ours stays when scopes end: what the raw interface allocated is freed through it.
#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport/arena_heap.h"

namespace lockstep::internal {

// Smaller tensors come from malloc, which reuses their memory by itself.
inline constexpr std::size_t kArenaTensorBytes = 64 * 1024;

// Takes effect on the thread that makes it, until it is closed, on any thread and in any order; of several open ones
// the last made counts. One without a heap changes nothing.
class ArenaScope {
 public:
  explicit ArenaScope(std::shared_ptr<ArenaHeap> heap);
  ~ArenaScope() { close(); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

  // Ends its effect at once: its thread's next allocation comes from elsewhere. Again: does nothing. Not from two
  // threads at a time.
  void close() noexcept;

  struct State;  // what the scope shares with the thread that it was made on

 private:
  std::shared_ptr<ArenaHeap> heap_;
  std::shared_ptr<State> state_;
};

// An uninitialised tensor in the heap, whatever its size; in ordinary memory if the heap is full.
// Error{invalid_argument} naming the sizes if they are negative, more than any memory has, or more than there is.
at::Tensor empty_in_arena(const std::shared_ptr<ArenaHeap>& heap, at::IntArrayRef sizes, at::ScalarType dtype);
// The same in ordinary memory.
at::Tensor checked_empty(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace lockstep::internal
