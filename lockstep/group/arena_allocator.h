// Lets tensors be born in shared memory: while an ArenaScope lives, large CPU tensors that its thread allocates come
// from an arena's heap instead of malloc. Each keeps its memory mapped for as long as it lives, wherever it is freed.
// The first scope of a process installs an allocator in front of torch's CPU allocator. If a program installs yet
// another one later, scopes have no effect, and callers, who look where a tensor lies, fall back to copying.
#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/transport/arena_heap.h"

namespace lockstep {

// Smaller tensors come from malloc, which reuses their memory by itself.
inline constexpr std::size_t kArenaTensorBytes = 64 * 1024;

// Belongs to the thread that makes it. Scopes nest; one without a heap changes nothing.
class ArenaScope {
 public:
  explicit ArenaScope(std::shared_ptr<ArenaHeap> heap);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  std::shared_ptr<ArenaHeap> previous_;
};

// An uninitialised tensor in the heap, whatever its size; in ordinary memory if the heap is full.
at::Tensor empty_in_arena(const std::shared_ptr<ArenaHeap>& heap, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace lockstep
