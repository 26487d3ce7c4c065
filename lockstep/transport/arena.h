// An Arena is memory that all ranks of a node read and write, with what is needed to wait for each other in it: posted
// words, doorbells, the abort record and the liveness of peers. Algorithms within a node are written over it.
// One thread per rank, except abort() and the heap, which any thread may use.
#pragma once

#include <sched.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/health/process_watch.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/transport/abort_record.h"
#include "lockstep/transport/arena_heap.h"
#include "lockstep/transport/arena_layout.h"
#include "lockstep/transport/mapping.h"

namespace lockstep {

struct ArenaOptions {
  std::size_t segment_bytes =
      0;  // a rank's share of the address space, taken as it is used; 0: half the machine's memory
  std::uint64_t generation = 0;
};

// A peer as messages name it and, where it is another process, as it is watched.
struct LocalPeer {
  std::string name = {};      // "rank 1 (host n1, pid 811)"
  ProcessWatch process = {};  // of nobody for threads of this process
  int pid = 0;                // 0: a thread of this process
};

// Why a wait ends without success.
struct WaitFailure {
  enum class Cause { deadline, died, left, none } cause = Cause::deadline;  // none: it goes on
  int peer = -1;                                                            // who died or left
  std::vector<int> missing;    // for whom the wait was, at a deadline or so far
  double elapsed_seconds = 0;  // of this wait
};

class Arena {
  // A waiter spins for a few microseconds, in which a peer on another core answers; then yields, which is what a peer
  // on the same core needs, and costs little on a core of one's own; then sleeps on its doorbell. Yielding longer would
  // waste cores in which others compute.
  static constexpr int kSpins = 300;

 public:
  // The memory is laid out already; marks this rank as joined.
  Arena(std::shared_ptr<Mapping> mapping, int rank, std::vector<LocalPeer> peers, std::string_view kind);
  // Marks this rank as having left, so that a peer that still waits for it is told. In a forked child, which has no
  // such memory, it does nothing.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string_view kind() const { return kind_; }
  const std::string& peer_name(int rank) const { return peers_[static_cast<std::size_t>(rank)].name; }
  // Its process, as the kernel sees it: a letter of process_state.h.
  char peer_state(int rank) const;
  std::uint64_t generation() const { return header_->generation; }

  arena::Slot& slot(int rank, std::uint64_t sequence) const {
    return slots_[rank * arena::kSlots + sequence % arena::kSlots];
  }
  arena::RankControl& control(int rank) const { return controls_[rank]; }
  std::byte* segment(int rank) const { return segments_ + static_cast<std::size_t>(rank) * segment_bytes_; }
  std::size_t segment_bytes() const { return segment_bytes_; }
  std::byte* staging(int rank, std::uint32_t chunk) const {
    return segment(rank) + (chunk % arena::kStagingBuffers) * arena::kStagingBytes;
  }
  // The offset of a run of bytes in this rank's segment, if it lies there.
  std::optional<std::size_t> offset_of(const std::byte* data, std::size_t bytes) const;

  // What a mesh over this arena's message rings needs; see make_arena_mesh().
  std::byte* rings() const;
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  int peer_pid(int rank) const { return peers_[static_cast<std::size_t>(rank)].pid; }
  const ProcessWatch& peer_process(int rank) const { return peers_[static_cast<std::size_t>(rank)].process; }

  // Memory of this rank's segment for tensors; it keeps the mapping alive by itself.
  const std::shared_ptr<ArenaHeap>& heap() const { return heap_; }

  // Wakes peers that sleep, after a word they may wait for was written.
  void ring() const;
  // Spins, yields, then sleeps until ready() is true; yields at once if a rank that it waits for, one for which
  // waiting_for(rank) is true, shares its core. Throws the abort record's error. When the deadline passes, or a
  // rank for which waiting_for(rank) is true has died or left, it records and throws what explain(stall) makes of it.
  // Who waits for long logs that text now and then.
  template <class Ready, class WaitingFor, class Explain>
  void await(Ready&& ready, WaitingFor&& waiting_for, Explain&& explain, Deadline deadline) const;

  void set_first_report(Duration first) { first_report_ = first; }

  // In which process this arena can be used.
  const ForkGuard& fork_guard() const { return fork_guard_; }

  // Records the first error for all ranks; later ones are dropped. Never blocks.
  void abort(const Error& error) const noexcept;
  // Throws what abort() recorded, if anything.
  void check_abort() const {
    if (has_abort(header_->abort)) throw_abort(header_->abort, rank_, size_);
  }

 private:
  [[noreturn]] void stop(const Error& error) const;
  // Spins for as long as a peer on another core may take to answer; whether ready() became true.
  template <class Ready, class WaitingFor>
  bool spin(Ready&& ready, WaitingFor&& waiting_for) const;
  // Called when this rank begins to wait in earnest.
  void leave_shared_core(const std::function<bool(int)>& waiting_for) const;
  std::optional<WaitFailure> lost_peer(const std::function<bool(int)>& waiting_for) const;
  WaitFailure stall_so_far(WaitFailure::Cause cause, const std::function<bool(int)>& waiting_for, Duration waited) const;
  // Whether it has warned of a peer that is stopped.
  bool warn_of_stopped(const std::function<bool(int)>& waiting_for, Duration waited) const;
  void await_slowly(const std::function<bool()>& ready, const std::function<bool(int)>& waiting_for,
                    const std::function<Error(const WaitFailure&)>& explain, Deadline deadline) const;

  const ForkGuard fork_guard_;
  std::shared_ptr<Mapping> mapping_;
  const int rank_;
  const int size_;
  const std::string kind_;
  std::vector<LocalPeer> peers_;
  arena::ArenaHeader* header_;
  arena::RankControl* controls_;
  arena::Slot* slots_;
  std::byte* segments_;
  std::size_t segment_bytes_;
  std::shared_ptr<ArenaHeap> heap_;
  Duration first_report_ = Duration::max();
  mutable int shared_waits_ = 0;  // for ranks on this core, since it was last looked whether to leave it
};

template <class Ready, class WaitingFor, class Explain>
void Arena::await(Ready&& ready, WaitingFor&& waiting_for, Explain&& explain, Deadline deadline) const {
  if (ready() || spin(ready, waiting_for)) return;
  await_slowly(std::ref(ready), std::ref(waiting_for), std::ref(explain), deadline);
}

template <class Ready, class WaitingFor>
bool Arena::spin(Ready&& ready, WaitingFor&& waiting_for) const {
  const auto core = static_cast<std::uint32_t>(::sched_getcpu() + 1);
  std::atomic<std::uint32_t>& mine = control(rank_).core;
  // Written only when it changes: the others read it whenever they wait.
  if (mine.load(std::memory_order_relaxed) != core) mine.store(core, std::memory_order_relaxed);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && control(peer).core.load(std::memory_order_relaxed) == core && waiting_for(peer)) return false;
  }
  for (int turn = 0; turn < kSpins; ++turn) {
    if (ready()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return ready();
}

// How large a mapping an arena of n ranks needs, and how to lay it out. Used by those who make arenas.
std::size_t arena_bytes(int ranks, std::size_t segment_bytes);
std::size_t default_segment_bytes();
// How much of a mapping of `bytes` is each rank's segment, by its header, which another process wrote.
// Error{corrupt_data} unless everything that `ranks` ranks need lies in the mapping.
std::size_t checked_segment_bytes(const arena::ArenaHeader& header, std::size_t bytes, int ranks);
void format_arena(const Mapping& mapping, int ranks, std::size_t segment_bytes, std::uint64_t generation,
                  std::uint64_t nonce);

// The arenas of n ranks that are threads of this process.
std::vector<std::unique_ptr<Arena>> make_local_arenas(int ranks, const ArenaOptions& options = {});

}  // namespace lockstep
