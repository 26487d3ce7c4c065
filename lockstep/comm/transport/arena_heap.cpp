#include "lockstep/comm/transport/arena_heap.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "lockstep/comm/transport/arena_layout.h"

namespace lockstep::internal {

ArenaHeap::ArenaHeap(std::shared_ptr<Mapping> mapping, std::byte* begin, std::size_t bytes)
    : mapping_(std::move(mapping)), begin_(begin), bytes_(bytes) {}

std::size_t ArenaHeap::class_bytes(std::size_t bytes) {
  const std::size_t wanted = std::max(bytes, arena::kPage);
  const std::size_t step = std::max(std::bit_floor(wanted) / 8, arena::kPage);
  const std::size_t steps = wanted / step + (wanted % step == 0 ? 0 : 1);
  return steps > SIZE_MAX / step ? SIZE_MAX / arena::kPage * arena::kPage : steps * step;
}

void* ArenaHeap::allocate(std::size_t bytes) {
  if (bytes > bytes_ || !fork_guard_.is_here()) return nullptr;
  const std::size_t size = class_bytes(bytes);
  const std::lock_guard lock(mutex_);
  auto& blocks = free_[size];
  void* block = nullptr;
  if (!blocks.empty()) {
    block = blocks.back();
    blocks.pop_back();
  } else {
    const std::size_t top = top_.load(std::memory_order_relaxed);
    if (size > bytes_ - top) return nullptr;
    block = begin_ + top;
    top_.store(top + size, std::memory_order_relaxed);
    class_of_.emplace(block, size);
  }
  if (blocks_out_++ == 0) self_ = shared_from_this();
  return block;
}

void ArenaHeap::deallocate(void* block) {
  if (!fork_guard_.is_here()) return;
  std::shared_ptr<ArenaHeap> last;  // declared first: it may end this heap, after the lock is gone
  const std::lock_guard lock(mutex_);
  free_[class_of_.at(block)].push_back(block);
  if (--blocks_out_ == 0) last = std::move(self_);
}

}  // namespace lockstep::internal
