#include "lockstep/transport/tcp_mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/health/peer_failure.h"
#include "lockstep/net/framing.h"
#include "lockstep/transport/byte_rings.h"
#include "lockstep/transport/control_message.h"
#include "lockstep/transport/doorbell.h"
#include "lockstep/transport/tcp_links.h"
#include "lockstep/transport/tcp_peer.h"
#include "lockstep/transport/waiter.h"

namespace lockstep {
namespace {

constexpr int kSpins = 100;
constexpr Duration kYieldFor = std::chrono::microseconds(100);

class TcpMesh final : public Mesh {
 public:
  TcpMesh(int rank, std::vector<TcpLink> links, const NodeMemory& node, Checksums checksums);
  ~TcpMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return rings_ ? "tcp and shared memory" : "tcp"; }
  std::string peer_name(int peer) const override { return peers_[static_cast<std::size_t>(peer)].name; }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void abort(const Error& error) noexcept override;

 private:
  class Wait;

  TcpPeer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void watch(int fd, std::uint32_t events, std::uint64_t id);
  bool is_ready(std::span<const Interest> interests);
  void take_events(int timeout_ms);
  void read_control(int from);
  bool set_aborted(Error error);
  void check_aborted();
  void report_dead();
  Error lost(int rank, const std::string& why);
  std::size_t moved(int rank, const TcpStreams::Step& step);
  [[noreturn]] void end_damaged(int from, const Error& damage);

  // Through memory.
  ByteRing ring_to(const TcpPeer& peer) const { return rings_->ring(place_, peer.place); }
  ByteRing ring_from(const TcpPeer& peer) const { return rings_->ring(peer.place, place_); }
  arena::Doorbell& bell(int place) const { return rings_->control().bells(place).messages; }
  RingEnds ends(int rank) const { return {rank_, rank, peers_[static_cast<std::size_t>(rank)].name}; }
  void ring_bell(const TcpPeer& peer) const;

  const ForkGuard fork_guard_;
  const int rank_;
  std::vector<TcpPeer> peers_;  // by rank; the own one has no descriptors
  std::optional<ByteRings> rings_;
  int place_ = -1;  // of this rank among those who share memory
  const Bytes goodbye_ = frame(encode(ControlKind::goodbye), kMaxControlBytes);
  const Bytes bell_ = frame(encode(ControlKind::bell), kMaxControlBytes);
  UniqueFd epoll_;
  UniqueFd wake_;
  bool is_woken_ = false;  // for the present or the next wait()
  std::atomic<bool> aborted_{false};
  std::mutex reason_mutex_;
  std::optional<Error> reason_;  // guarded by reason_mutex_
};

// Sleeps in epoll for all peers: ranks that share memory ring the bell over their control connection.
class TcpMesh::Wait final : public Waiter {
 public:
  Wait(TcpMesh& mesh, std::span<const Interest> interests, Duration yield_for)
      : Waiter({.yield_for = yield_for, .look_period = Duration::max()}), mesh_(mesh), interests_(interests) {}

  bool is_ready() override { return mesh_.is_ready(interests_); }
  bool is_ready_after_yield() override {
    mesh_.take_events(0);
    return is_ready();
  }
  void look(Duration) override {}  // is_ready() does: the death of a peer is an event

  void sleep(Duration most) override {
    if (!mesh_.rings_) return mesh_.take_events(milliseconds(most));
    for (const Interest& each : interests_) {
      const TcpPeer& peer = mesh_.peer(each.peer);
      if (each.writable && peer.place >= 0) mesh_.ring_to(peer).await_room();
    }
    bool slept = false;
    sleep_at(
        mesh_.bell(mesh_.place_), [this] { return is_ready(); },
        [&] {
          slept = true;
          mesh_.take_events(milliseconds(most));
        });
    if (!slept) mesh_.take_events(0);
  }

 private:
  // As epoll_wait() takes them, rounded up.
  static int milliseconds(Duration most) {
    if (most == Duration::max()) return -1;
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(most).count();
    return static_cast<int>(std::min<std::int64_t>(ms, INT_MAX));
  }

  TcpMesh& mesh_;
  const std::span<const Interest> interests_;
};

constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
// Of a connection: 0 for control, else 1 + the index of one for data.
constexpr std::uint64_t kNumbers = kMaxConnections + 1;
std::uint64_t event_id(int rank, std::uint64_t number) { return static_cast<std::uint64_t>(rank) * kNumbers + number; }

TcpMesh::TcpMesh(int rank, std::vector<TcpLink> links, const NodeMemory& node, Checksums checksums)
    : rank_(rank),
      peers_(links.size()),
      rings_(node.rings),
      epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      wake_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  if (!epoll_ || !wake_) throw system_error("making the descriptors of a mesh failed", errno);
  watch(wake_.get(), EPOLLIN, kWakeId);
  for (std::size_t place = 0; place < node.ranks.size(); ++place) {
    (node.ranks[place] == rank_ ? place_ : peer(node.ranks[place]).place) = static_cast<int>(place);
  }
  for (int each = 0; each < size(); ++each) {
    TcpPeer& peer = this->peer(each);
    TcpLink& link = links[static_cast<std::size_t>(each)];
    peer.name = std::move(link.who);
    if (each == rank_) continue;
    peer.control = std::move(link.control);
    watch(peer.control.get(), EPOLLIN | EPOLLET, event_id(each, 0));
    for (std::size_t i = 0; i < link.data.size(); ++i) {
      watch(link.data[i].get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, event_id(each, i + 1));
    }
    peer.streams = TcpStreams(std::move(link.data), checksums);
  }
}

TcpMesh::~TcpMesh() {
  if (!fork_guard_.is_here()) return;  // a forked child's goodbye would be its parent's
  for (const TcpPeer& each : peers_) each.send_control(goodbye_);
}

void TcpMesh::watch(int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error("watching a connection failed", errno);
  }
}

std::size_t TcpMesh::send_some(int to, ByteSpan data) {
  check_aborted();
  TcpPeer& peer = this->peer(to);
  if (peer.place < 0) return moved(to, peer.streams.send(data));
  if (peer.is_over()) throw lost(to, peer.why);
  const std::size_t bytes = ring_to(peer).put(data, ends(to));
  if (bytes != 0) ring_bell(peer);
  return bytes;
}

std::size_t TcpMesh::recv_some(int from, MutableByteSpan data) {
  check_aborted();
  if (data.empty()) return 0;
  TcpPeer& peer = this->peer(from);
  if (peer.place < 0) {
    try {
      return moved(from, peer.streams.receive(data));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data) throw;
      end_damaged(from, error);
    }
  }
  // Looked at first: what was sent before it left is still to be received.
  const bool over = peer.is_over();
  const ByteRing ring = ring_from(peer);
  const std::size_t bytes = ring.take(data, ends(from));
  if (bytes == 0 && over) throw lost(from, peer.why);
  if (bytes != 0 && ring.wakes_sender()) ring_bell(peer);
  return bytes;
}

std::size_t TcpMesh::moved(int rank, const TcpStreams::Step& step) {
  if (!step.failure.empty()) throw lost(rank, step.failure);
  if (step.is_blocked && peer(rank).is_dead()) throw lost(rank, peer(rank).why);
  return step.bytes;
}

// Ends the mesh for all ranks.
void TcpMesh::end_damaged(int from, const Error& damage) {
  const Error error(damage.kind(),
                    fmt::format("data from {} to {} was damaged on its way: {}; look for a bad network card, cable, "
                                "switch or memory between them",
                                peer(from).name, peer(rank_).name, damage.what()),
                    {.rank = rank_, .peer = from});
  abort(error);
  check_aborted();
  throw Error(error);
}

void TcpMesh::ring_bell(const TcpPeer& peer) const {
  // Either the sleeper sees what we did, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& sleeping = bell(peer.place).sleeping;
  if (sleeping.load(std::memory_order_relaxed) == 0 || sleeping.exchange(0) == 0) return;
  peer.send_control(bell_);
}

bool TcpMesh::is_ready(std::span<const Interest> interests) {
  check_aborted();
  const auto is_open = [this](const Interest& each) {
    const TcpPeer& peer = this->peer(each.peer);
    if (peer.place < 0) {
      return (each.readable && peer.streams.is_readable()) || (each.writable && peer.streams.is_writable());
    }
    if (peer.is_over() || (each.readable && ring_from(peer).filled() != 0)) return true;
    return each.writable && ring_to(peer).has_room();
  };
  if (is_woken_ || std::ranges::any_of(interests, is_open)) return true;
  report_dead();
  return false;
}

void TcpMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  if (interests.empty()) {
    take_events(0);
    check_aborted();
    return report_dead();
  }
  const auto ready = [&] { return is_ready(interests); };
  // Only through memory does a peer answer before a system call would have returned.
  const bool is_near = std::ranges::any_of(interests, [&](const Interest& each) { return peer(each.peer).place >= 0; });
  const bool done = spin_until(ready, is_near ? kSpins : 0) ||
                    Wait(*this, interests, is_near ? kYieldFor : Duration::zero()).wait(deadline);
  if (!done) throw Error(ErrorKind::timeout, "no peer was ready", {.rank = rank_});
  is_woken_ = false;
}

void TcpMesh::take_events(int timeout_ms) {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, std::size(events), timeout_ms);
  if (count < 0) {
    if (errno == EINTR) return;
    throw system_error("waiting for peers failed", errno);
  }
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeId) {
      std::uint64_t calls = 0;
      is_woken_ = ::read(wake_.get(), &calls, sizeof calls) > 0;
      continue;
    }
    const int from = static_cast<int>(events[i].data.u64 / kNumbers);
    const std::uint64_t number = events[i].data.u64 % kNumbers;
    if (number == 0) {
      read_control(from);
    } else {
      peer(from).streams.note_events(number - 1, events[i].events);
    }
  }
}

void TcpMesh::read_control(int from) {
  TcpPeer& peer = this->peer(from);
  try {
    if (auto reason = peer.read_control(from, rank_, size())) set_aborted(*std::move(reason));
  } catch (const Error& error) {
    abort(Error(error.kind(), fmt::format("{} sent a malformed control message: {}", peer.name, error.what()),
                {.rank = rank_, .peer = from}));
  }
}

void TcpMesh::abort(const Error& error) noexcept {
  if (!fork_guard_.is_here()) return;
  try {
    if (!set_aborted(error)) return;
    const Bytes message = frame(encode_abort(error), kMaxControlBytes);
    for (const TcpPeer& each : peers_) each.send_control(message);
  } catch (const std::exception&) {
    aborted_ = true;  // no memory for the text
  }
  wake();
}

void TcpMesh::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

bool TcpMesh::set_aborted(Error error) {
  const std::lock_guard lock(reason_mutex_);
  if (aborted_) return false;
  reason_ = std::move(error);
  aborted_ = true;
  return true;
}

void TcpMesh::check_aborted() {
  if (!aborted_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(reason_mutex_);
  throw reason_ ? Error(*reason_) : Error(ErrorKind::aborted, "the group was ended", {.rank = rank_});
}

void TcpMesh::report_dead() {
  for (int each = 0; each < size(); ++each) {
    if (peer(each).state != TcpPeer::State::dead) continue;
    peer(each).state = TcpPeer::State::reported;
    throw lost(each, peer(each).why);
  }
}

Error TcpMesh::lost(int rank, const std::string& why) {
  // The control connection may know better why.
  take_events(0);
  check_aborted();
  const TcpPeer& peer = this->peer(rank);
  if (peer.state == TcpPeer::State::left) {
    return peer_lost({.peer = rank, .name = peer.name, .how = Departure::left}, rank_);
  }
  return peer_lost({.peer = rank, .name = peer.name, .how = Departure::lost, .why = peer.why.empty() ? why : peer.why},
                   rank_);
}

}  // namespace

std::unique_ptr<Mesh> connect_tcp_mesh(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  return std::make_unique<TcpMesh>(settings.rank, connect_tcp_links(settings, store, deadline), settings.node,
                                   settings.checksums);
}

}  // namespace lockstep
