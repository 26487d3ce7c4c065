#include "lockstep/transport/arena_mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/transport/abort_record.h"
#include "lockstep/transport/futex.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using arena::AbortRecord;
using arena::kRingBytes;
using arena::RingControl;
using arena::RingRank;

constexpr int kSpins = 100;
constexpr Duration kYieldFor = 100us;
constexpr Duration kLivenessPeriod = 20ms;  // the dead ring no bell

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }
constexpr std::size_t pairs(int ranks) { return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks - 1); }

constexpr std::size_t ranks_offset() { return round_up(sizeof(AbortRecord), arena::kCacheLine); }
constexpr std::size_t controls_offset(int ranks) {
  return ranks_offset() + static_cast<std::size_t>(ranks) * sizeof(RingRank);
}
constexpr std::size_t rings_offset(int ranks) {
  return round_up(controls_offset(ranks) + pairs(ranks) * sizeof(RingControl), arena::kPage);
}

// One end of a stream. The sender owns control->sent, the receiver control->received; both only grow.
struct Ring {
  RingControl* control = nullptr;
  std::byte* memory = nullptr;

  std::uint64_t filled() const {
    return control->sent.load(std::memory_order_acquire) - control->received.load(std::memory_order_acquire);
  }

  std::size_t put(ByteSpan data, std::uint64_t room) const {
    const std::uint64_t at = control->sent.load(std::memory_order_relaxed);
    const std::size_t bytes = std::min<std::size_t>(data.size(), room);
    const std::size_t offset = at % kRingBytes;
    const std::size_t first = std::min(bytes, kRingBytes - offset);
    std::memcpy(memory + offset, data.data(), first);
    std::memcpy(memory, data.data() + first, bytes - first);
    control->sent.store(at + bytes, std::memory_order_release);
    return bytes;
  }

  std::size_t take(MutableByteSpan data, std::uint64_t available) const {
    const std::uint64_t at = control->received.load(std::memory_order_relaxed);
    const std::size_t bytes = std::min<std::size_t>(data.size(), available);
    const std::size_t offset = at % kRingBytes;
    const std::size_t first = std::min(bytes, kRingBytes - offset);
    std::memcpy(data.data(), memory + offset, first);
    std::memcpy(data.data() + first, memory, bytes - first);
    control->received.store(at + bytes, std::memory_order_release);
    return bytes;
  }
};

// What is known of a peer's process. `dead` becomes `buried` when wait() has reported it.
enum class Life : std::uint8_t { alive, dead, buried };

class ArenaMesh final : public Mesh {
 public:
  ArenaMesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank, std::vector<ArenaPeer> peers);
  ~ArenaMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return "shared memory"; }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void abort(const Error& error) noexcept override;

 private:
  Ring ring(int from, int to) const;
  RingRank& control(int rank) const { return ranks_[rank]; }
  bool left(int rank) const { return control(rank).left.load(std::memory_order_acquire) != 0; }
  Life& life(int rank) { return lives_[static_cast<std::size_t>(rank)]; }
  void ring_bell(int rank) const;

  bool is_ready(std::span<const Interest> interests);
  void sleep(std::span<const Interest> interests, Duration most);
  void look_for_dead(TimePoint now);
  void check_abort() const;
  Error lost(int rank) const;
  std::uint64_t checked(int peer, std::uint64_t filled) const;

  const Birthplace birthplace_;
  const std::shared_ptr<const void> keep_alive_;
  const int rank_;
  const std::vector<ArenaPeer> peers_;
  AbortRecord* abort_;
  RingRank* ranks_;
  RingControl* controls_;
  std::byte* rings_;
  std::vector<Life> lives_;
  std::vector<pollfd> watched_;  // by rank
  TimePoint looked_;
  std::atomic<bool> is_woken_{false};
};

ArenaMesh::ArenaMesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank, std::vector<ArenaPeer> peers)
    : keep_alive_(std::move(keep_alive)),
      rank_(rank),
      peers_(std::move(peers)),
      abort_(reinterpret_cast<AbortRecord*>(region)),
      ranks_(reinterpret_cast<RingRank*>(region + ranks_offset())),
      controls_(reinterpret_cast<RingControl*>(region + controls_offset(size()))),
      rings_(region + rings_offset(size())),
      lives_(peers_.size(), Life::alive) {
  for (const ArenaPeer& each : peers_) watched_.push_back({each.pidfd.get(), POLLIN, 0});
}

ArenaMesh::~ArenaMesh() {
  if (!birthplace_.is_here()) return;  // the memory is not there
  control(rank_).left.store(1, std::memory_order_release);
  for (int peer = 0; peer < size(); ++peer) ring_bell(peer);
}

Ring ArenaMesh::ring(int from, int to) const {
  const auto index = static_cast<std::size_t>(from * (size() - 1) + to - (to > from ? 1 : 0));
  return {controls_ + index, rings_ + index * kRingBytes};
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
  const Ring out = ring(rank_, peer);
  const std::uint64_t room = kRingBytes - checked(peer, out.filled());
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
  const Ring in = ring(peer, rank_);
  const std::uint64_t available = checked(peer, in.filled());
  if (available == 0) {
    if (over) throw lost(peer);
    return 0;
  }
  const std::size_t bytes = in.take(data, available);
  // Pairs with the fence in sleep(). A sender that does not wait for room is left in peace.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (in.control->wants_room.load(std::memory_order_relaxed) != 0) {
    in.control->wants_room.store(0, std::memory_order_relaxed);
    ring_bell(peer);
  }
  return bytes;
}

bool ArenaMesh::is_ready(std::span<const Interest> interests) {
  if (is_woken_.load(std::memory_order_relaxed) && is_woken_.exchange(false)) return true;
  if (abort_->state.load(std::memory_order_acquire) != AbortRecord::none) return true;
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
  for (int turn = 0; turn < kSpins; ++turn) {
    if (is_ready(interests)) return check_abort();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  const TimePoint start = now;
  for (; now - start < kYieldFor && !deadline.expired(now); now = steady_clock().now()) {
    ::sched_yield();
    if (is_ready(interests)) return check_abort();
  }
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
  if (::poll(watched_.data(), watched_.size(), 0) > 0) {
    for (int peer = 0; peer < size(); ++peer) {
      pollfd& watched = watched_[static_cast<std::size_t>(peer)];
      if (watched.fd < 0 || (watched.revents & POLLIN) == 0) continue;
      watched.fd = -1;
      if (!left(peer)) life(peer) = Life::dead;
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (life(peer) != Life::dead) continue;
    life(peer) = Life::buried;
    throw lost(peer);
  }
}

void ArenaMesh::abort(const Error& error) noexcept {
  if (!birthplace_.is_here()) return;
  if (!record_abort(*abort_, error)) return;
  for (int rank = 0; rank < size(); ++rank) ring_bell(rank);
}

void ArenaMesh::check_abort() const {
  if (abort_->state.load(std::memory_order_acquire) != AbortRecord::none) throw_abort(*abort_, rank_);
}

Error ArenaMesh::lost(int rank) const {
  return Error(ErrorKind::peer_lost,
               fmt::format("{} {}", peers_[static_cast<std::size_t>(rank)].name,
                           left(rank) ? "has left the group" : "was lost: its process ended"),
               {.rank = rank_, .peer = rank});
}

std::uint64_t ArenaMesh::checked(int peer, std::uint64_t filled) const {
  if (filled <= kRingBytes) return filled;
  throw Error(ErrorKind::corrupt_data,
              fmt::format("the ring of shared memory between rank {} and {} is damaged", rank_,
                          peers_[static_cast<std::size_t>(peer)].name),
              {.rank = rank_, .peer = peer});
}

}  // namespace

std::size_t ring_region_bytes(int ranks) { return rings_offset(ranks) + pairs(ranks) * kRingBytes; }

std::unique_ptr<Mesh> make_arena_mesh(std::shared_ptr<const void> keep_alive, std::byte* region, int rank,
                                      std::vector<ArenaPeer> peers) {
  return std::make_unique<ArenaMesh>(std::move(keep_alive), region, rank, std::move(peers));
}

std::unique_ptr<Mesh> make_arena_mesh(const Arena& arena) {
  std::vector<ArenaPeer> peers;
  for (int peer = 0; peer < arena.size(); ++peer) {
    peers.push_back({arena.peer_name(peer), {}});
    const int pidfd = arena.peer_pidfd(peer);
    if (pidfd < 0) continue;
    peers.back().pidfd.reset(::fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
    if (!peers.back().pidfd) throw system_error("duplicating the descriptor of a peer's process failed", errno);
  }
  return make_arena_mesh(arena.mapping(), arena.message_rings(), arena.rank(), std::move(peers));
}

}  // namespace lockstep
