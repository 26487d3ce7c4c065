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

#include "lockstep/base/birthplace.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/net/framing.h"
#include "lockstep/net/wire.h"
#include "lockstep/transport/tcp_links.h"

namespace lockstep {
namespace {

// Control messages: a kind and, for an abort, the error: its kind, peer + 1 and text.
constexpr char kAbort = 'a';
constexpr char kGoodbye = 'g';
constexpr std::size_t kMaxControlBytes = 4096;

// What is known of a peer. `dead` becomes `buried` when wait() has reported it.
enum class PeerState { alive, left, dead, buried };

struct Peer {
  TcpLink link;
  FrameBuffer frames{kMaxControlBytes};
  PeerState state = PeerState::alive;
  std::string why;  // it is dead
  // Whether to try, as far as is known. Edge-triggered events set them, "not now" clears them.
  bool readable = true;
  bool writable = true;
};

class TcpMesh final : public Mesh {
 public:
  TcpMesh(int rank, std::vector<TcpLink> links);
  ~TcpMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string_view name() const override { return "tcp"; }
  std::size_t send_some(int peer, ByteSpan data) override;
  std::size_t recv_some(int peer, MutableByteSpan data) override;
  void wait(std::span<const Interest> interests, Deadline deadline) override;
  void wake() noexcept override;
  void abort(const Error& error) noexcept override;

 private:
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void watch(int fd, std::uint32_t events, std::uint64_t id);
  void take_events(int timeout_ms);
  void read_control(Peer& peer);
  bool set_aborted(Error error);
  void check_aborted();
  void report_dead();
  Error lost(int rank, const std::string& why);
  std::size_t not_now(int rank, bool& ready);

  const Birthplace birthplace_;
  const int rank_;
  std::vector<Peer> peers_;  // by rank; the own one has no descriptors
  const Bytes goodbye_ = frame(Bytes(1, kGoodbye), kMaxControlBytes);
  UniqueFd epoll_;
  UniqueFd wake_;
  bool is_woken_ = false;  // for the next wait()
  std::atomic<bool> aborted_{false};
  std::mutex reason_mutex_;
  std::optional<Error> reason_;  // guarded by reason_mutex_
};

Bytes encode_abort(const Error& error) {
  Bytes message(1, kAbort);
  put_u8(message, static_cast<std::uint8_t>(error.kind()));
  put_u32(message, static_cast<std::uint32_t>(error.detail().peer + 1));
  message += std::string_view(error.what()).substr(0, kMaxControlBytes - message.size());
  return message;
}

Error decode_abort(ByteView message, int rank) {
  WireReader reader(message, "a message that ends the group");
  const auto kind = std::min(reader.u8(), static_cast<std::uint8_t>(ErrorKind::internal));
  const int peer = static_cast<int>(reader.u32()) - 1;
  return Error(static_cast<ErrorKind>(kind), std::string(reader.take(reader.left())), {.rank = rank, .peer = peer});
}

constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
std::uint64_t event_id(int rank, Wire wire) {
  return static_cast<std::uint64_t>(rank) * 2 + static_cast<std::uint64_t>(wire);
}

TcpMesh::TcpMesh(int rank, std::vector<TcpLink> links)
    : rank_(rank),
      peers_(links.size()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw system_error("making the descriptors of a mesh failed", errno);
  watch(wake_.get(), EPOLLIN, kWakeId);
  for (int each = 0; each < size(); ++each) {
    peer(each).link = std::move(links[static_cast<std::size_t>(each)]);
    if (each == rank_) continue;
    watch(peer(each).link.wire(Wire::data).get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
          event_id(each, Wire::data));
    watch(peer(each).link.wire(Wire::control).get(), EPOLLIN | EPOLLET, event_id(each, Wire::control));
  }
}

TcpMesh::~TcpMesh() {
  if (!birthplace_.is_here()) return;  // a forked child's goodbye would be its parent's
  for (Peer& each : peers_) {
    const int fd = each.link.wire(Wire::control).get();
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
  if (!peer.writable || data.empty()) return 0;
  for (;;) {
    const ssize_t count =
        ::send(peer.link.wire(Wire::data).get(), data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return not_now(to, peer.writable);
    if (errno != EINTR) throw lost(to, std::strerror(errno));
  }
}

std::size_t TcpMesh::recv_some(int from, MutableByteSpan data) {
  check_aborted();
  Peer& peer = this->peer(from);
  if (!peer.readable || data.empty()) return 0;
  for (;;) {
    const ssize_t count = ::recv(peer.link.wire(Wire::data).get(), data.data(), data.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0) throw lost(from, "its process ended or closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return not_now(from, peer.readable);
    if (errno != EINTR) throw lost(from, std::strerror(errno));
  }
}

std::size_t TcpMesh::not_now(int rank, bool& ready) {
  ready = false;
  const Peer& peer = this->peer(rank);
  if (peer.state == PeerState::dead || peer.state == PeerState::buried) throw lost(rank, peer.why);
  return 0;
}

void TcpMesh::wait(std::span<const Interest> interests, Deadline deadline) {
  if (interests.empty()) {
    take_events(0);
    check_aborted();
    return report_dead();
  }
  const auto ready = [&](const Interest& interest) {
    const Peer& peer = this->peer(interest.peer);
    return (interest.readable && peer.readable) || (interest.writable && peer.writable);
  };
  for (bool last = false;; last = deadline.expired()) {
    check_aborted();
    if (std::exchange(is_woken_, false) || std::ranges::any_of(interests, ready)) return;
    report_dead();
    if (last) throw Error(ErrorKind::timeout, "no peer was ready", {.rank = rank_});
    take_events(deadline.poll_timeout_ms());
  }
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
    Peer& peer = this->peer(static_cast<int>(events[i].data.u64 / 2));
    if (events[i].data.u64 % 2 == static_cast<std::uint64_t>(Wire::control)) {
      read_control(peer);
      continue;
    }
    const std::uint32_t over = EPOLLHUP | EPOLLERR;
    if ((events[i].events & (EPOLLIN | EPOLLRDHUP | over)) != 0) peer.readable = true;
    if ((events[i].events & (EPOLLOUT | over)) != 0) peer.writable = true;
  }
}

void TcpMesh::read_control(Peer& peer) {
  const auto died = [&](const std::string& why) {
    if (peer.state != PeerState::alive) return;
    peer.state = PeerState::dead;
    peer.why = why;
  };
  char buffer[512];
  for (;;) {
    const ssize_t count = ::recv(peer.link.wire(Wire::control).get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) return died("its process ended");
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH) {
        return died(fmt::format("its host has not answered for {} s", seconds(kPeerTimeout)));
      }
      return died(std::strerror(errno));
    }
    try {
      peer.frames.append({buffer, static_cast<std::size_t>(count)});
      while (const auto message = peer.frames.next()) {
        if (*message == std::string(1, kGoodbye) && peer.state == PeerState::alive) peer.state = PeerState::left;
        if (!message->empty() && message->front() == kAbort)
          set_aborted(decode_abort(ByteView(*message).substr(1), rank_));
      }
    } catch (const Error& error) {
      return died(error.what());
    }
  }
}

void TcpMesh::abort(const Error& error) noexcept {
  if (!birthplace_.is_here()) return;
  try {
    if (!set_aborted(error)) return;
    const Bytes message = frame(encode_abort(error), kMaxControlBytes);
    for (Peer& each : peers_) {
      const int fd = each.link.wire(Wire::control).get();
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
  return std::make_unique<TcpMesh>(settings.rank, connect_tcp_links(settings, store, deadline));
}

}  // namespace lockstep
