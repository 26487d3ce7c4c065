#include "lockstep/comm/transport/arena_mesh.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/transport/doorbell.h"
#include "lockstep/comm/transport/waiter.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 100;
constexpr Duration kLivenessPeriod = 20ms;  // dead peers ring no bell

class ArenaMesh final : public Mesh {
 public:
  ArenaMesh(const ByteRings& rings, int rank, LocalPeerList peers, Duration yield_for)
      : rank_(rank),
        peers_(std::move(peers)),
        rings_(rings),
        yield_for_(yield_for),
        reported_(static_cast<std::size_t>(size())),
        announcements_(static_cast<std::size_t>(size())) {}
  ~ArenaMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return peers_.size(); }
  std::string_view name() const override { return "shared memory"; }
  std::string peer_name(int peer) const override { return peers_.name(peer); }
  std::string_view peer_state(int peer) const override { return to_string(peers_.state(peer)); }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void announce(ByteView bytes) noexcept override;
  std::optional<Announcement> take_announcement() override;
  void abort(const Error& error) noexcept override;

 private:
  class Wait;

  const SharedControl& control() const { return rings_.control(); }
  arena::Doorbell& bell(int rank) const { return control().bells(rank).messages; }
  bool left(int rank) const { return control().bells(rank).left.load(std::memory_order_acquire) != 0; }
  // Whether nothing more is to be expected of a rank.
  bool is_over(int rank) const { return left(rank) || reported_[static_cast<std::size_t>(rank)]; }
  RingEnds ends(int peer) const { return {rank_, peer, peers_.name(peer)}; }

  bool is_ready(std::span<const Interest> interests) const;
  bool has_announcement() const;
  void look_for_dead(TimePoint now);
  Error lost(int peer) const;

  const ForkGuard fork_guard_;
  const int rank_;
  LocalPeers peers_;
  const ByteRings rings_;
  const Duration yield_for_;
  std::vector<bool> reported_;                // ranks whose death wait() has reported
  std::vector<std::uint32_t> announcements_;  // by rank: the version that was taken
  TimePoint looked_;
  std::atomic<bool> is_woken_{false};
};

class ArenaMesh::Wait final : public Waiter {
 public:
  Wait(ArenaMesh& mesh, std::span<const Interest> interests)
      : Waiter({.yield_for = mesh.yield_for_, .look_period = kLivenessPeriod}), mesh_(mesh), interests_(interests) {}

  bool is_ready() override { return mesh_.is_ready(interests_); }
  void look(Duration) override {
    const TimePoint now = steady_clock().now();
    if (now - mesh_.looked_ >= kLivenessPeriod) mesh_.look_for_dead(now);
  }
  void sleep(Duration most) override {
    for (const Interest& each : interests_) {
      if (each.writable) mesh_.rings_.ring(mesh_.rank_, each.peer).await_room();
    }
    sleep_at(
        mesh_.bell(mesh_.rank_), [this] { return is_ready(); }, most);
  }

 private:
  ArenaMesh& mesh_;
  const std::span<const Interest> interests_;
};

ArenaMesh::~ArenaMesh() {
  if (!fork_guard_.is_here()) return;  // the memory is not there
  control().bells(rank_).left.store(1, std::memory_order_release);
  for (int peer = 0; peer < size(); ++peer) ring(bell(peer));
}

std::size_t ArenaMesh::send_some(int peer, ByteSpan data) {
  control().check_abort(rank_);
  if (is_over(peer)) throw lost(peer);
  const std::size_t bytes = rings_.ring(rank_, peer).put(data, ends(peer));
  if (bytes != 0) ring(bell(peer));
  return bytes;
}

std::size_t ArenaMesh::recv_some(int peer, MutableByteSpan data) {
  control().check_abort(rank_);
  if (data.empty()) return 0;
  // Looked at first: what was sent before it left is still to be received.
  const bool over = is_over(peer);
  const ByteRing in = rings_.ring(peer, rank_);
  const std::size_t bytes = in.take(data, ends(peer));
  if (bytes == 0 && over) throw lost(peer);
  if (bytes != 0 && in.wakes_sender()) ring(bell(peer));
  return bytes;
}

bool ArenaMesh::is_ready(std::span<const Interest> interests) const {
  if (is_woken_.load(std::memory_order_relaxed) || control().is_aborted() || has_announcement()) return true;
  return std::ranges::any_of(interests, [&](const Interest& each) {
    if (left(each.peer) || (each.readable && rings_.ring(each.peer, rank_).filled() != 0)) return true;
    return each.writable && rings_.ring(rank_, each.peer).has_room();
  });
}

void ArenaMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  control().check_abort(rank_);
  const TimePoint now = steady_clock().now();
  if (interests.empty()) return look_for_dead(now);
  if (now - looked_ >= kLivenessPeriod) look_for_dead(now);
  const bool ready = spin_until([&] { return is_ready(interests); }, kSpins) || Wait(*this, interests).wait(deadline);
  if (is_woken_.load(std::memory_order_relaxed)) is_woken_.store(false);
  control().check_abort(rank_);
  if (ready) return;
  look_for_dead(steady_clock().now());
  throw Error(ErrorKind::timeout, "no peer was ready before the deadline", {.rank = rank_});
}

void ArenaMesh::wake() noexcept {
  is_woken_ = true;
  ring(bell(rank_));
}

void ArenaMesh::announce(ByteView bytes) noexcept {
  if (fork_guard_.is_here()) control().announce(rank_, bytes);
}

bool ArenaMesh::has_announcement() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_ && control().has_announcement(peer, announcements_[static_cast<std::size_t>(peer)])) return true;
  }
  return false;
}

std::optional<Announcement> ArenaMesh::take_announcement() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    if (auto bytes = control().announcement(peer, announcements_[static_cast<std::size_t>(peer)])) {
      return Announcement{peer, std::move(*bytes)};
    }
  }
  return std::nullopt;
}

void ArenaMesh::look_for_dead(TimePoint now) {
  looked_ = now;
  peers_.look();
  for (int peer = 0; peer < size(); ++peer) {
    if (!peers_.has_ended(peer) || is_over(peer)) continue;
    reported_[static_cast<std::size_t>(peer)] = true;
    throw lost(peer);
  }
}

void ArenaMesh::abort(const Error& error) noexcept {
  if (fork_guard_.is_here()) control().abort(error);
}

Error ArenaMesh::lost(int peer) const {
  PeerFailure failure{.peer = peer, .name = peers_.name(peer), .how = Departure::left};
  if (!left(peer)) {
    failure.how = Departure::lost;
    failure.why = "its process ended";
  }
  return peer_lost(failure, rank_);
}

}  // namespace

std::unique_ptr<Mesh> make_arena_mesh(const ByteRings& rings, int rank, LocalPeerList peers, Duration yield_for) {
  return std::make_unique<ArenaMesh>(rings, rank, std::move(peers), yield_for);
}

std::unique_ptr<Mesh> make_arena_mesh(const Arena& arena) {
  return make_arena_mesh(arena.rings(), arena.rank(), arena.peers());
}

}  // namespace lockstep::internal
