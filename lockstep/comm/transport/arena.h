// An Arena is memory that all ranks of a node read and write, with what is needed to wait for each other in it: posted
// words, doorbells, the abort record and the liveness of peers. Algorithms within a node are written over it.
// One thread per rank, except abort() and the heap, which any thread may use.
#pragma once

#include <sched.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/health/local_peers.h"
#include "lockstep/comm/transport/arena_heaps.h"
#include "lockstep/comm/transport/arena_memory.h"
#include "lockstep/comm/transport/arena_wait.h"
#include "lockstep/comm/transport/waiter.h"

namespace lockstep::internal {

struct ArenaOptions {
  // A rank's share of the address space, taken as it is used; 0: as arena_size.h says.
  std::size_t segment_bytes = 0;
  std::uint64_t generation = 0;
};

class Arena {
 public:
  // The memory is laid out already; marks this rank as joined. heaps: in which the tensors of these ranks lie; null: in
  // the segments of this memory, which else hold staging buffers only.
  Arena(std::shared_ptr<Mapping> mapping, int rank, LocalPeerList peers, std::string_view kind,
        std::shared_ptr<const ArenaHeaps> heaps = nullptr);
  // Marks this rank as having left, so that a peer that still waits for it learns of it. In a forked child, which has
  // no such memory, it does nothing.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string_view kind() const { return kind_; }
  const LocalPeerList& peers() const { return peers_; }
  const std::string& peer_name(int rank) const { return (*peers_)[static_cast<std::size_t>(rank)].name; }
  // Its process, as the kernel sees it: "alive", "stopped (by SIGSTOP or the like)"; empty if that is not known.
  std::string_view peer_state(int rank) const;
  std::uint64_t generation() const { return memory_.header->generation; }

  arena::Slot& slot(int rank, std::uint64_t sequence) const {
    return memory_.slots[rank * arena::kSlots + sequence % arena::kSlots];
  }
  arena::RankControl& control(int rank) const { return memory_.controls[rank]; }
  std::byte* staging(int rank, std::uint32_t chunk) const {
    return memory_.segments + static_cast<std::size_t>(rank) * memory_.segment_bytes +
           (chunk % arena::kStagingBuffers) * arena::kStagingBytes;
  }

  // The streams between the ranks; see make_arena_mesh(). They keep the mapping alive.
  const ByteRings& rings() const { return rings_; }
  // Where the tensors of the ranks lie. A group that is split off may share it, and outlive this arena.
  const std::shared_ptr<const ArenaHeaps>& heaps() const { return heaps_; }
  const std::shared_ptr<ArenaHeap>& heap() const { return heaps_->mine(); }
  std::byte* segment(int rank) const { return heaps_->segment(rank); }

  // Wakes peers that sleep, after a word they may wait for was written.
  void ring() const;
  // Waits until ready() is true; yields at once if a rank that it waits for, one for which waiting_for(rank) is true,
  // shares its core. Throws the abort record's error. When the deadline passes, or a rank for which waiting_for(rank)
  // is true has died or left, it records and throws what explain(failure) makes of it. A long wait logs that text now
  // and then.
  template <class Ready, class WaitingFor, class Explain>
  void await(Ready&& ready, WaitingFor&& waiting_for, Explain&& explain, Deadline deadline) const {
    if (ready() || spin(ready, waiting_for)) return;
    wait_.run({std::ref(ready), std::ref(waiting_for), std::ref(explain)}, deadline);
  }
  void set_first_report(Duration first) { wait_.set_first_report(first); }
  // A rank whose process has ended without leaving, as the kernel knows now; -1: none.
  int find_dead() const { return wait_.find_dead(); }

  // In which process this arena can be used.
  const ForkGuard& fork_guard() const { return fork_guard_; }

  // Ends collectives and messages of all ranks with this error; the first one wins. Never blocks.
  void abort(const Error& error) const noexcept;
  // Throws what ended them, if anything.
  void check_abort() const { rings_.control().check_abort(rank_); }

 private:
  friend class ArenaWait;
  // Enough for a peer on another core to answer.
  static constexpr int kSpins = 300;

  template <class Ready, class WaitingFor>
  bool spin(Ready&& ready, WaitingFor&& waiting_for) const;

  const ForkGuard fork_guard_;
  const std::shared_ptr<Mapping> mapping_;
  const int rank_;
  const int size_;
  const std::string kind_;
  const LocalPeerList peers_;
  const ArenaMemory memory_;
  const ByteRings rings_;
  const std::shared_ptr<const ArenaHeaps> heaps_;
  mutable ArenaWait wait_;
};

template <class Ready, class WaitingFor>
bool Arena::spin(Ready&& ready, WaitingFor&& waiting_for) const {
  const auto core = static_cast<std::uint32_t>(::sched_getcpu() + 1);
  std::atomic<std::uint32_t>& mine = control(rank_).core;
  // Written only when it changes: the others read it whenever they wait.
  if (mine.load(std::memory_order_relaxed) != core) mine.store(core, std::memory_order_relaxed);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && control(peer).core.load(std::memory_order_relaxed) == core && waiting_for(peer)) return false;
  }
  return spin_until(ready, kSpins);
}

// The arenas of n ranks that are threads of this process. heaps: of each rank, as for Arena; empty: of their own.
std::vector<std::unique_ptr<Arena>> make_local_arenas(int ranks, const ArenaOptions& options = {},
                                                      const std::vector<std::shared_ptr<const ArenaHeaps>>& heaps = {});

}  // namespace lockstep::internal
