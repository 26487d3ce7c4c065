#include "lockstep/transport/arena_mesh.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/transport/abort_record.h"
#include "lockstep/transport/byte_rings.h"
#include "lockstep/transport/futex.h"
#include "lockstep/health/process_state.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using arena::kRingBytes;
using arena::RingRank;

constexpr Duration kLivenessPeriod = 20ms;  // the dead ring no bell

// What is known of a peer's process. `dead` becomes `buried` when wait() has reported it.
enum class Life : std::uint8_t { alive, dead, buried };

class ArenaMesh final : public Mesh {
 public:
  ArenaMesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank, std::vector<LocalPeer> peers);
  ~ArenaMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return "shared memory"; }
  std::string peer_name(int peer) const override { return name_of(peer); }
  std::string_view peer_state(int peer) const override {
    return describe_process_state(process_state(peers_[static_cast<std::size_t>(peer)].pid));
  }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void abort(const Error& error) noexcept override;

 private:
  const std::string& name_of(int peer) const { return peers_[static_cast<std::size_t>(peer)].name; }
  ByteRing ring(int from, int to) const { return rings_.ring(from, to); }
  RingRank& control(int rank) const { return rings_.rank(rank); }
  bool left(int rank) const { return control(rank).left.load(std::memory_order_acquire) != 0; }
  Life& life(int rank) { return lives_[static_cast<std::size_t>(rank)]; }
  void ring_bell(int rank) const;

  bool is_ready(std::span<const Interest> interests);
  void sleep(std::span<const Interest> interests, Duration most);
  void look_for_dead(TimePoint now);
  void note_ended(int peer);
  void check_abort() const;
  Error lost(int rank) const;

  const ForkGuard fork_guard_;
  const std::shared_ptr<const void> keep_alive_;
  const int rank_;
  const std::vector<LocalPeer> peers_;
  const ByteRings rings_;
  std::vector<Life> lives_;
  std::vector<pollfd> watched_;  // by rank
  TimePoint looked_;
  std::atomic<bool> is_woken_{false};
};

ArenaMesh::ArenaMesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank, std::vector<LocalPeer> peers)
    : keep_alive_(std::move(keep_alive)),
      rank_(rank),
      peers_(std::move(peers)),
      rings_(region, size()),
      lives_(peers_.size(), Life::alive) {
  for (const LocalPeer& each : peers_) watched_.push_back({each.process.fd(), POLLIN, 0});
}

ArenaMesh::~ArenaMesh() {
  if (!fork_guard_.is_here()) return;  // the memory is not there
  control(rank_).left.store(1, std::memory_order_release);
  for (int peer = 0; peer < size(); ++peer) ring_bell(peer);
}

void ArenaMesh::ring_bell(int rank) const {
  // Pairs with the fence in sleep(): either the sleeper sees what we wrote, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  RingRank& other = control(rank);
  if (other.sleeping.load(std::memory_order_relaxed) == 0) return;
  other.doorbell.fetch_add(1, std::memory_order_release);
  futex_wake_all(&other.doorbell);
}

std::size_t ArenaMesh::send_some(int peer, ByteSpan data) {
  check_abort();
  if (left(peer) || life(peer) == Life::buried) throw lost(peer);
  const ByteRing out = ring(rank_, peer);
  const std::uint64_t room = kRingBytes - out.checked_filled(rank_, peer, name_of(peer));
  if (room == 0 || data.empty()) return 0;
  const std::size_t bytes = out.put(data, room);
  ring_bell(peer);
  return bytes;
}

std::size_t ArenaMesh::recv_some(int peer, MutableByteSpan data) {
  check_abort();
  if (data.empty()) return 0;
  // Looked at first: what was sent before it left is still to be received.
  const bool over = left(peer) || life(peer) == Life::buried;
  const ByteRing in = ring(peer, rank_);
  const std::uint64_t available = in.checked_filled(rank_, peer, name_of(peer));
  if (available == 0) {
    if (over) throw lost(peer);
    return 0;
  }
  const std::size_t bytes = in.take(data, available);
  if (in.wakes_sender()) ring_bell(peer);
  return bytes;
}

bool ArenaMesh::is_ready(std::span<const Interest> interests) {
  if (is_woken_.load(std::memory_order_relaxed) && is_woken_.exchange(false)) return true;
  if (has_abort(rings_.abort())) return true;
  return std::ranges::any_of(interests, [&](const Interest& each) {
    if (left(each.peer) || (each.readable && ring(each.peer, rank_).filled() != 0)) return true;
    return each.writable && ring(rank_, each.peer).filled() < kRingBytes;
  });
}

void ArenaMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  check_abort();
  TimePoint now = steady_clock().now();
  if (interests.empty()) return look_for_dead(now);
  if (now - looked_ >= kLivenessPeriod) look_for_dead(now);
  if (look_for_peer(
          deadline, [&] { return is_ready(interests); }, [] {}))
    return check_abort();
  now = steady_clock().now();
  while (!deadline.expired(now)) {
    if (now - looked_ >= kLivenessPeriod) look_for_dead(now);
    sleep(interests, std::min<Duration>(kLivenessPeriod, deadline.remaining(now)));
    if (is_ready(interests)) return check_abort();
    now = steady_clock().now();
  }
  look_for_dead(now);
  throw Error(ErrorKind::timeout, "no peer was ready", {.rank = rank_});
}

void ArenaMesh::sleep(std::span<const Interest> interests, Duration most) {
  RingRank& mine = control(rank_);
  const std::uint32_t heard = mine.doorbell.load(std::memory_order_acquire);
  mine.sleeping.store(1, std::memory_order_relaxed);
  for (const Interest& each : interests) {
    if (each.writable) ring(rank_, each.peer).control->wants_room.store(1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with ring_bell() and recv_some()
  if (is_ready(interests)) {
    is_woken_ = true;  // the caller asks again
  } else {
    futex_wait(&mine.doorbell, heard, most);
  }
  mine.sleeping.store(0, std::memory_order_relaxed);
}

void ArenaMesh::wake() noexcept {
  is_woken_ = true;
  ring_bell(rank_);
}

void ArenaMesh::look_for_dead(TimePoint now) {
  looked_ = now;
  ::poll(watched_.data(), watched_.size(), 0);
  for (int peer = 0; peer < size(); ++peer) {
    pollfd& watched = watched_[static_cast<std::size_t>(peer)];
    if (watched.fd >= 0 && watched.revents != 0) watched.fd = -1;  // it has ended, or the descriptor is another now
    if (watched.fd < 0 && life(peer) == Life::alive && peers_[static_cast<std::size_t>(peer)].process.has_ended()) {
      note_ended(peer);
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (life(peer) != Life::dead) continue;
    life(peer) = Life::buried;
    throw lost(peer);
  }
}

void ArenaMesh::note_ended(int peer) {
  if (life(peer) == Life::alive && !left(peer)) life(peer) = Life::dead;
}

void ArenaMesh::abort(const Error& error) noexcept {
  if (!fork_guard_.is_here()) return;
  if (!record_abort(rings_.abort(), error)) return;
  for (int rank = 0; rank < size(); ++rank) ring_bell(rank);
}

void ArenaMesh::check_abort() const {
  if (has_abort(rings_.abort())) throw_abort(rings_.abort(), rank_, size());
}

Error ArenaMesh::lost(int rank) const {
  return Error(ErrorKind::peer_lost,
               fmt::format("{} {}", name_of(rank), left(rank) ? "has left the group" : "was lost: its process ended"),
               {.rank = rank_, .peer = rank});
}

}  // namespace

std::unique_ptr<Mesh> make_arena_mesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank,
                                      std::vector<LocalPeer> peers) {
  return std::make_unique<ArenaMesh>(std::move(keep_alive), region, rank, std::move(peers));
}

std::unique_ptr<Mesh> make_arena_mesh(const Arena& arena) {
  std::vector<LocalPeer> peers;
  for (int peer = 0; peer < arena.size(); ++peer) {
    peers.push_back({arena.peer_name(peer), arena.peer_process(peer).duplicate(), arena.peer_pid(peer)});
  }
  return make_arena_mesh(arena.mapping(), arena.rings(), arena.rank(), std::move(peers));
}

}  // namespace lockstep
