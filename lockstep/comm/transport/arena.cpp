#include "lockstep/comm/transport/arena.h"

#include <random>
#include <utility>

#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {

Arena::Arena(std::shared_ptr<Mapping> mapping, int rank, LocalPeerList peers, std::string_view kind)
    : mapping_(std::move(mapping)),
      rank_(rank),
      size_(static_cast<int>(peers->size())),
      kind_(kind),
      peers_(std::move(peers)),
      memory_(*mapping_, size_),
      rings_(rings_of(mapping_, size_)),
      heap_(std::make_shared<ArenaHeap>(mapping_, segment(rank_) + kStagingAreaBytes,
                                        memory_.segment_bytes - kStagingAreaBytes)),
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

std::optional<std::size_t> Arena::offset_of(const std::byte* data, std::size_t bytes) const {
  const std::byte* mine = segment(rank_);
  if (data < mine || bytes > segment_bytes()) return std::nullopt;
  const auto offset = static_cast<std::size_t>(data - mine);
  if (offset > segment_bytes() - bytes) return std::nullopt;
  return offset;
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

std::vector<std::unique_ptr<Arena>> make_local_arenas(int ranks, const ArenaOptions& options) {
  const std::size_t segment = whole_segment_bytes(options.segment_bytes);
  auto mapping = std::make_shared<Mapping>(Mapping::create(arena_bytes(ranks, segment)));
  format_arena(*mapping, ranks, segment, options.generation, std::random_device{}());
  std::vector<LocalPeer> peers(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) peers[static_cast<std::size_t>(peer)].name = "rank " + std::to_string(peer);
  const auto list = std::make_shared<const std::vector<LocalPeer>>(std::move(peers));
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int rank = 0; rank < ranks; ++rank) arenas.push_back(std::make_unique<Arena>(mapping, rank, list, "in-process"));
  return arenas;
}

}  // namespace lockstep::internal
