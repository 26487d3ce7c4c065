#include "lockstep/transport/tcp_mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/net/framing.h"
#include "lockstep/transport/byte_rings.h"
#include "lockstep/transport/checked_stream.h"
#include "lockstep/transport/control_message.h"
#include "lockstep/transport/tcp_links.h"

namespace lockstep {
namespace {

using arena::kRingBytes;

// What is known of a peer. `dead` becomes `buried` when wait() has reported it.
enum class PeerState { alive, left, dead, buried };

// Whether to try a connection, as far as is known. Edge-triggered events set them, "not now" clears them.
struct Readiness {
  bool readable = true;
  bool writable = true;
};

struct Peer {
  TcpLink link;
  std::vector<Readiness> ready;  // of link.data
  // Of link.data as well; empty without checksums.
  std::vector<CheckedSender> senders;
  std::vector<CheckedReceiver> receivers;
  // How far the streams have come, which says whose turn it is among several connections.
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  int neighbour = -1;  // its place among those who share memory with this rank, or -1
  FrameBuffer frames{kMaxControlBytes};
  PeerState state = PeerState::alive;
  std::string why;  // it is dead

  // Its turn, and how many bytes that is for.
  std::size_t turn(std::uint64_t position) const { return position / kStripeBytes % link.data.size(); }
  std::size_t limit(std::uint64_t position, std::size_t bytes) const {
    return link.data.size() == 1 ? bytes : std::min<std::size_t>(bytes, kStripeBytes - position % kStripeBytes);
  }
  bool is_readable(std::size_t turn) const {
    return ready[turn].readable || (!receivers.empty() && receivers[turn].has_data());
  }
  ssize_t send(std::size_t turn, ByteSpan data) {
    const int fd = link.data[turn].get();
    if (!senders.empty()) return senders[turn].send(fd, data);
    return ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(std::size_t turn, MutableByteSpan space) {
    const int fd = link.data[turn].get();
    if (!receivers.empty()) return receivers[turn].receive(fd, space);
    return ::recv(fd, space.data(), space.size(), MSG_DONTWAIT);
  }
};

class TcpMesh final : public Mesh {
 public:
  TcpMesh(int rank, std::vector<TcpLink> links, const NodeMemory& node, Checksums checksums);
  ~TcpMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return rings_ ? "tcp and shared memory" : "tcp"; }
  std::string peer_name(int peer) const override { return peers_[static_cast<std::size_t>(peer)].link.who; }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void abort(const Error& error) noexcept override;

 private:
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void watch(int fd, std::uint32_t events, std::uint64_t id);
  bool is_ready(const Interest& interest);
  bool look_around(std::span<const Interest> interests, Deadline deadline);
  void sleep(std::span<const Interest> interests, Deadline deadline);
  void take_events(int timeout_ms);
  void read_control(int from);
  void take_control(int from, ByteView received);
  bool set_aborted(Error error);
  void check_aborted();
  void report_dead();
  Error lost(int rank, const std::string& why);
  std::size_t not_now(int rank, bool& ready);
  bool is_over(const Peer& peer) const { return peer.state != PeerState::alive; }

  // As ::recv() from one connection. What was damaged ends the mesh.
  ssize_t receive(int rank, std::size_t turn, MutableByteSpan space);

  // Through memory.
  ByteRing ring_to(const Peer& peer) const { return rings_->ring(place_, peer.neighbour); }
  ByteRing ring_from(const Peer& peer) const { return rings_->ring(peer.neighbour, place_); }
  std::size_t put_some(int rank, ByteSpan data);
  std::size_t take_some(int rank, MutableByteSpan data);
  void ring_bell(Peer& peer);

  const ForkGuard fork_guard_;
  const int rank_;
  std::vector<Peer> peers_;                       // by rank; the own one has no descriptors
  const std::shared_ptr<const void> keep_alive_;  // what the rings lie in
  std::optional<ByteRings> rings_;
  int place_ = -1;  // of this rank among those who share memory
  const Bytes goodbye_ = frame(encode(ControlKind::goodbye), kMaxControlBytes);
  const Bytes bell_ = frame(encode(ControlKind::bell), kMaxControlBytes);
  UniqueFd epoll_;
  UniqueFd wake_;
  bool is_woken_ = false;  // for the next wait()
  std::atomic<bool> aborted_{false};
  std::mutex reason_mutex_;
  std::optional<Error> reason_;  // guarded by reason_mutex_
};

constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
// Of a connection: 0 for control, else 1 + the index of one for data.
constexpr std::uint64_t kNumbers = kMaxConnections + 1;
std::uint64_t event_id(int rank, std::uint64_t number) { return static_cast<std::uint64_t>(rank) * kNumbers + number; }

TcpMesh::TcpMesh(int rank, std::vector<TcpLink> links, const NodeMemory& node, Checksums checksums)
    : rank_(rank),
      peers_(links.size()),
      keep_alive_(node.keep_alive),
      epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
      wake_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  if (!epoll_ || !wake_) throw system_error("making the descriptors of a mesh failed", errno);
  watch(wake_.get(), EPOLLIN, kWakeId);
  if (!node.ranks.empty()) rings_.emplace(node.rings, static_cast<int>(node.ranks.size()));
  for (std::size_t place = 0; place < node.ranks.size(); ++place) {
    (node.ranks[place] == rank_ ? place_ : peer(node.ranks[place]).neighbour) = static_cast<int>(place);
  }
  for (int each = 0; each < size(); ++each) {
    Peer& peer = this->peer(each);
    peer.link = std::move(links[static_cast<std::size_t>(each)]);
    if (each == rank_) continue;
    peer.ready.resize(peer.link.data.size());
    if (checksums == Checksums::on) {
      peer.senders.resize(peer.link.data.size());
      peer.receivers.resize(peer.link.data.size());
    }
    for (std::size_t i = 0; i < peer.link.data.size(); ++i) {
      watch(peer.link.data[i].get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, event_id(each, i + 1));
    }
    watch(peer.link.control.get(), EPOLLIN | EPOLLET, event_id(each, 0));
  }
}

TcpMesh::~TcpMesh() {
  if (!fork_guard_.is_here()) return;  // a forked child's goodbye would be its parent's
  for (Peer& each : peers_) {
    const int fd = each.link.control.get();
    if (fd >= 0) ::send(fd, goodbye_.data(), goodbye_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
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
  Peer& peer = this->peer(to);
  if (peer.neighbour >= 0) return put_some(to, data);
  const std::size_t turn = peer.turn(peer.sent);
  if (!peer.ready[turn].writable || data.empty()) return 0;
  const std::size_t bytes = peer.limit(peer.sent, data.size());
  for (;;) {
    const ssize_t count = peer.send(turn, data.first(bytes));
    if (count >= 0) {
      peer.sent += static_cast<std::uint64_t>(count);
      return static_cast<std::size_t>(count);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return not_now(to, peer.ready[turn].writable);
    if (errno != EINTR) throw lost(to, std::strerror(errno));
  }
}

std::size_t TcpMesh::recv_some(int from, MutableByteSpan data) {
  check_aborted();
  Peer& peer = this->peer(from);
  if (peer.neighbour >= 0) return take_some(from, data);
  const std::size_t turn = peer.turn(peer.received);
  if (data.empty() || !peer.is_readable(turn)) return 0;
  const std::size_t bytes = peer.limit(peer.received, data.size());
  for (;;) {
    const ssize_t count = receive(from, turn, data.first(bytes));
    if (count > 0) {
      peer.received += static_cast<std::uint64_t>(count);
      return static_cast<std::size_t>(count);
    }
    if (count == 0) throw lost(from, "its process ended or closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return not_now(from, peer.ready[turn].readable);
    if (errno != EINTR) throw lost(from, std::strerror(errno));
  }
}

ssize_t TcpMesh::receive(int from, std::size_t turn, MutableByteSpan space) {
  Peer& peer = this->peer(from);
  try {
    return peer.receive(turn, space);
  } catch (const Error& damage) {
    abort(Error(damage.kind(),
                fmt::format("data from {} to {} was damaged on its way: {}; look for a bad network card, cable, switch "
                            "or memory between them",
                            peer.link.who, this->peer(rank_).link.who, damage.what()),
                {.rank = rank_, .peer = from}));
    check_aborted();
    throw;
  }
}

std::size_t TcpMesh::put_some(int to, ByteSpan data) {
  Peer& peer = this->peer(to);
  if (is_over(peer)) throw lost(to, peer.why);
  const ByteRing ring = ring_to(peer);
  const std::uint64_t room = kRingBytes - ring.checked_filled(rank_, to, peer.link.who);
  if (room == 0 || data.empty()) return 0;
  const std::size_t bytes = ring.put(data, room);
  ring_bell(peer);
  return bytes;
}

std::size_t TcpMesh::take_some(int from, MutableByteSpan data) {
  if (data.empty()) return 0;
  Peer& peer = this->peer(from);
  // Looked at first: what was sent before it left is still to be received.
  const bool over = is_over(peer);
  const ByteRing ring = ring_from(peer);
  const std::uint64_t available = ring.checked_filled(rank_, from, peer.link.who);
  if (available == 0) {
    if (over) throw lost(from, peer.why);
    return 0;
  }
  const std::size_t bytes = ring.take(data, available);
  if (ring.wakes_sender()) ring_bell(peer);
  return bytes;
}

void TcpMesh::ring_bell(Peer& peer) {
  // Either the sleeper sees what we did, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& sleeping = rings_->rank(peer.neighbour).sleeping;
  if (sleeping.load(std::memory_order_relaxed) == 0 || sleeping.exchange(0) == 0) return;
  ::send(peer.link.control.get(), bell_.data(), bell_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::size_t TcpMesh::not_now(int rank, bool& ready) {
  ready = false;
  const Peer& peer = this->peer(rank);
  if (peer.state == PeerState::dead || peer.state == PeerState::buried) throw lost(rank, peer.why);
  return 0;
}

bool TcpMesh::is_ready(const Interest& interest) {
  const Peer& peer = this->peer(interest.peer);
  if (peer.neighbour >= 0) {
    if (is_over(peer) || (interest.readable && ring_from(peer).filled() != 0)) return true;
    return interest.writable && ring_to(peer).filled() < kRingBytes;
  }
  return (interest.readable && peer.is_readable(peer.turn(peer.received))) ||
         (interest.writable && peer.ready[peer.turn(peer.sent)].writable);
}

void TcpMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  if (interests.empty()) {
    take_events(0);
    check_aborted();
    return report_dead();
  }
  for (bool last = false;; last = deadline.expired()) {
    if (look_around(interests, deadline)) return;
    if (last) throw Error(ErrorKind::timeout, "no peer was ready", {.rank = rank_});
    sleep(interests, deadline);
  }
}

bool TcpMesh::look_around(std::span<const Interest> interests, Deadline deadline) {
  const auto ready = [&] {
    check_aborted();
    if (std::exchange(is_woken_, false)) return true;
    if (std::ranges::any_of(interests, [&](const Interest& each) { return is_ready(each); })) return true;
    report_dead();
    return false;
  };
  if (ready()) return true;
  if (std::ranges::none_of(interests, [&](const Interest& each) { return peer(each.peer).neighbour >= 0; }))
    return false;
  return look_for_peer(deadline, ready, [this] { take_events(0); });
}

void TcpMesh::sleep(std::span<const Interest> interests, Deadline deadline) {
  if (!rings_) return take_events(deadline.poll_timeout_ms());
  std::atomic<std::uint32_t>& sleeping = rings_->rank(place_).sleeping;
  sleeping.store(1, std::memory_order_relaxed);
  for (const Interest& each : interests) {
    const Peer& peer = this->peer(each.peer);
    if (each.writable && peer.neighbour >= 0) ring_to(peer).control->wants_room.store(1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with ring_bell() and take_some()
  const bool ready = std::ranges::any_of(interests, [&](const Interest& each) { return is_ready(each); });
  take_events(ready ? 0 : deadline.poll_timeout_ms());
  sleeping.store(0, std::memory_order_relaxed);
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
      continue;
    }
    Peer& peer = this->peer(from);
    const std::uint32_t over = EPOLLHUP | EPOLLERR;
    Readiness& ready = peer.ready[number - 1];
    if ((events[i].events & (EPOLLIN | EPOLLRDHUP | over)) != 0) ready.readable = true;
    if ((events[i].events & (EPOLLOUT | over)) != 0) ready.writable = true;
  }
}

void TcpMesh::take_control(int from, ByteView received) {
  Peer& peer = this->peer(from);
  try {
    peer.frames.append(received);
    while (const auto bytes = peer.frames.next()) {
      const ControlMessage message = decode_control(*bytes, from, rank_, size());
      if (message.kind == ControlKind::goodbye && peer.state == PeerState::alive) peer.state = PeerState::left;
      if (message.error) set_aborted(*message.error);
    }
  } catch (const Error& error) {  // nothing that comes behind it can be read
    peer.frames = FrameBuffer(kMaxControlBytes);
    abort(Error(error.kind(), fmt::format("{} sent what is no control message: {}", peer.link.who, error.what()),
                {.rank = rank_, .peer = from}));
  }
}

void TcpMesh::read_control(int from) {
  Peer& peer = this->peer(from);
  const auto died = [&](const std::string& why) {
    if (peer.state != PeerState::alive) return;
    peer.state = PeerState::dead;
    peer.why = why;
  };
  char buffer[512];
  for (;;) {
    const ssize_t count = ::recv(peer.link.control.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) return died("its process ended");
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH) {
        return died(fmt::format("its host has not answered for {} s", seconds(kPeerTimeout)));
      }
      return died(std::strerror(errno));
    }
    take_control(from, {buffer, static_cast<std::size_t>(count)});
  }
}

void TcpMesh::abort(const Error& error) noexcept {
  if (!fork_guard_.is_here()) return;
  try {
    if (!set_aborted(error)) return;
    const Bytes message = frame(encode_abort(error), kMaxControlBytes);
    for (Peer& each : peers_) {
      const int fd = each.link.control.get();
      // Nothing else of any size travels there, so there is room.
      if (fd >= 0) ::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
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
    if (peer(each).state != PeerState::dead) continue;
    peer(each).state = PeerState::buried;
    throw lost(each, peer(each).why);
  }
}

Error TcpMesh::lost(int rank, const std::string& why) {
  // The control connection may know better why.
  take_events(0);
  check_aborted();
  const Peer& peer = this->peer(rank);
  const bool left = peer.state == PeerState::left;
  return Error(ErrorKind::peer_lost,
               fmt::format("{} {}", peer.link.who,
                           left ? "has left the group" : "was lost: " + (peer.why.empty() ? why : peer.why)),
               {.rank = rank_, .peer = rank});
}

}  // namespace

std::unique_ptr<Mesh> connect_tcp_mesh(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  return std::make_unique<TcpMesh>(settings.rank, connect_tcp_links(settings, store, deadline), settings.node,
                                   settings.checksums);
}

}  // namespace lockstep
