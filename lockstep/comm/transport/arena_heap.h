// An ArenaHeap hands out the memory of one rank's segment and takes it back for reuse: a caching allocator, so that
// what is allocated and freed every training step costs no page faults. Size classes, 8 a power of two; memory goes
// back to its class, never to the system. Thread-safe. It lives, and keeps its memory mapped, as long as anyone holds
// it or one of its blocks. In a child that is forked later it has no memory, and what is given back there is forgotten:
// its lock may be held by a thread that the child does not have.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/transport/mapping.h"

namespace lockstep::internal {

class ArenaHeap : public std::enable_shared_from_this<ArenaHeap> {
 public:
  ArenaHeap(std::shared_ptr<Mapping> mapping, std::byte* begin, std::size_t bytes);

  // 4096-byte aligned; nullptr when the segment is full, or in a forked child. REQUIRES: a shared_ptr owns this heap.
  void* allocate(std::size_t bytes);
  // REQUIRES: `block` came from allocate() of this heap and has not been given back.
  void deallocate(void* block);
  bool owns(const void* address) const { return address >= begin_ && address < begin_ + bytes_; }

  std::size_t used_bytes() const { return top_.load(std::memory_order_relaxed); }  // ever taken from the segment

  // The size of the class that serves `bytes`: at most an eighth more, in whole pages, and never more than can be
  // addressed. Pure.
  static std::size_t class_bytes(std::size_t bytes);

 private:
  const ForkGuard fork_guard_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* const begin_;
  const std::size_t bytes_;
  std::atomic<std::size_t> top_{0};

  std::mutex mutex_;
  // State below is protected by mutex_.
  std::size_t blocks_out_ = 0;
  std::shared_ptr<ArenaHeap> self_;                           // while blocks are out
  std::unordered_map<std::size_t, std::vector<void*>> free_;  // by class size
  std::unordered_map<void*, std::size_t> class_of_;           // of every block ever cut; a block never changes class
};

}  // namespace lockstep::internal
