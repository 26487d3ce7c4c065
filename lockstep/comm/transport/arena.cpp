#include "lockstep/comm/transport/arena.h"

#include <algorithm>
#include <random>
#include <utility>

#include "lockstep/comm/transport/arena_size.h"
#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {
namespace {

// A segment holds the staging buffers, and then the heap.
std::shared_ptr<const ArenaHeaps> heaps_in(const std::shared_ptr<Mapping>& mapping, const ArenaMemory& memory, int rank,
                                           int size) {
  std::byte* mine = memory.segments + static_cast<std::size_t>(rank) * memory.segment_bytes;
  auto heap = std::make_shared<ArenaHeap>(mapping, mine + kStagingAreaBytes, memory.segment_bytes - kStagingAreaBytes);
  return std::make_shared<const ArenaHeaps>(memory.segments, memory.segment_bytes, size, std::move(heap));
}

std::size_t local_segment_bytes(const ArenaOptions& options, int ranks) {
  if (options.segment_bytes != 0) return whole_segment_bytes(options.segment_bytes);
  return std::max(segment_bytes_for(room_of_this_process(ranks), ranks), whole_segment_bytes(kStagingAreaBytes));
}

}  // namespace

Arena::Arena(std::shared_ptr<Mapping> mapping, int rank, LocalPeerList peers, std::string_view kind,
             std::shared_ptr<const ArenaHeaps> heaps)
    : mapping_(std::move(mapping)),
      rank_(rank),
      size_(static_cast<int>(peers->size())),
      kind_(kind),
      peers_(std::move(peers)),
      memory_(*mapping_, size_),
      rings_(rings_of(mapping_, size_)),
      heaps_(heaps != nullptr ? std::move(heaps) : heaps_in(mapping_, memory_, rank_, size_)),
      wait_(*this) {
  // Also for the other ranks' segments: each process maps their pages, too.
  mapping_->prefer_huge_pages(memory_.segments, static_cast<std::size_t>(size_) * memory_.segment_bytes);
  control(rank_).state.store(arena::RankState::joined, std::memory_order_release);
}

Arena::~Arena() {
  if (!fork_guard_.is_here()) return;
  control(rank_).state.store(arena::RankState::left, std::memory_order_release);
  ring();
}

std::string_view Arena::peer_state(int rank) const {
  return to_string((*peers_)[static_cast<std::size_t>(rank)].process.state());
}

void Arena::ring() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) wake(rings_.control().bells(peer).collectives);
  }
}

void Arena::abort(const Error& error) const noexcept {
  if (fork_guard_.is_here()) rings_.control().abort(error);
}

std::vector<std::unique_ptr<Arena>> make_local_arenas(int ranks, const ArenaOptions& options,
                                                      const std::vector<std::shared_ptr<const ArenaHeaps>>& heaps) {
  const std::size_t segment = local_segment_bytes(options, ranks);
  auto mapping = std::make_shared<Mapping>(Mapping::create(arena_bytes(ranks, segment)));
  format_arena(*mapping, ranks, segment, options.generation, std::random_device{}());
  std::vector<LocalPeer> peers(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) peers[static_cast<std::size_t>(peer)].name = "rank " + std::to_string(peer);
  const auto list = std::make_shared<const std::vector<LocalPeer>>(std::move(peers));
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = heaps.empty() ? nullptr : heaps[static_cast<std::size_t>(rank)];
    arenas.push_back(std::make_unique<Arena>(mapping, rank, list, "in-process", own));
  }
  return arenas;
}

}  // namespace lockstep::internal
