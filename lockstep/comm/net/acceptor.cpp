#include "lockstep/comm/net/acceptor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::internal {
namespace {

// How long a new connection may be silent before the next one takes its place at the limit. Honest peers need far less;
// a silent stranger delays the queue by no more than this.
constexpr Duration kPatience = std::chrono::milliseconds(20);
constexpr Duration kFailurePause = std::chrono::milliseconds(100);  // after running out of descriptors
constexpr int kMostAtOnce = 64;

}  // namespace

Acceptor::Acceptor(std::string what, std::vector<Listener> listeners, HandshakeSettings settings, Admission admission,
                   const AcceptorLimits& limits)
    : what_(std::move(what)),
      listeners_(std::move(listeners)),
      settings_(std::move(settings)),
      admission_(std::move(admission)),
      limits_(limits),
      epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })) {
  if (!epoll_) throw system_error("making an event queue failed", errno);
  for (const Listener& each : listeners_) watch(EPOLL_CTL_ADD, each.fd(), true, nullptr);
}

void Acceptor::watch(int operation, int fd, bool readable, Incoming* incoming) const {
  epoll_event event{.events = readable ? EPOLLIN : 0U, .data = {.ptr = incoming}};
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw system_error("watching a connection failed", errno);
}

void Acceptor::pause(Pause why, Deadline until) {
  paused_ = why;
  paused_until_ = until;
  for (const Listener& each : listeners_) watch(EPOLL_CTL_MOD, each.fd(), false, nullptr);
}

void Acceptor::resume() {
  paused_ = Pause::none;
  paused_until_ = Deadline::never();
  for (const Listener& each : listeners_) watch(EPOLL_CTL_MOD, each.fd(), true, nullptr);
}

std::optional<Acceptor::Arrival> Acceptor::next(Deadline deadline) {
  for (;;) {
    if (auto arrival = take()) return arrival;
    if (deadline.expired()) return std::nullopt;
    pollfd entry{epoll_.get(), POLLIN, 0};
    if (::poll(&entry, 1, std::min(deadline, wake_at()).poll_timeout_ms()) < 0 && errno != EINTR) {
      throw system_error("waiting for connections failed", errno);
    }
  }
}

Deadline Acceptor::wake_at() const {
  if (crowd_.empty()) return paused_until_;
  return std::min(paused_until_, Deadline::at(crowd_.front().since + limits_.handshake));
}

std::optional<Acceptor::Arrival> Acceptor::take() {
  for (int accepted = 0; accepted < kMostAtOnce; ++accepted) {
    // All that have sent something are served before one is closed to admit the next.
    if (auto arrival = advance_ready()) return arrival;
    refuse_late();
    if (!accept_one()) break;
  }
  return std::nullopt;
}

std::optional<Acceptor::Arrival> Acceptor::advance_ready() {
  epoll_event events[kMostAtOnce];
  const int count = ::epoll_wait(epoll_.get(), events, kMostAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    const auto each = std::ranges::find_if(crowd_, [&](Incoming& one) { return &one == events[i].data.ptr; });
    if (each == crowd_.end() || advance(each) != Progress::admitted) continue;
    Incoming done = std::move(*each);
    crowd_.erase(each);
    watch(EPOLL_CTL_DEL, done.fd.get(), false, nullptr);
    return Arrival{std::move(done.fd), done.handshake.peer()};
  }
  return std::nullopt;
}

void Acceptor::close() {
  for (const Listener& each : listeners_) ::shutdown(each.fd(), SHUT_RDWR);
  crowd_.clear();
}

void Acceptor::refuse_late() {
  const TimePoint late = steady_clock().now() - limits_.handshake;
  while (!crowd_.empty() && crowd_.front().since <= late) refuse(crowd_.begin(), "its handshake took too long");
}

// False if no connection waits, or accepting is paused.
bool Acceptor::accept_one() {
  if (paused_ != Pause::none) {
    const bool is_over = paused_until_.expired() || (paused_ == Pause::crowd && !is_full());
    if (!is_over) return false;
    resume();
  }
  if (is_full()) {
    const Deadline patience = Deadline::at(next_to_close()->since + kPatience);
    if (!patience.expired()) {
      pause(Pause::crowd, patience);
      return false;
    }
  }
  try {
    for (Listener& listener : listeners_) {
      UniqueFd fd = listener.accept();
      if (!fd) continue;
      if (is_full()) refuse(next_to_close(), "too many handshakes are in progress, and this is the oldest");
      std::string from = describe_peer(fd.get());
      crowd_.push_back(
          {std::move(fd), std::move(from), Handshake::server(settings_, admission_), steady_clock().now()});
      watch(EPOLL_CTL_ADD, crowd_.back().fd.get(), true, &crowd_.back());
      return true;
    }
  } catch (const Error&) {  // out of descriptors or memory: connections wait in the kernel's queue
    pause(Pause::failure, Deadline::after(kFailurePause));
    throw;
  }
  return false;
}

// An honest peer sends something as soon as it has connected.
Acceptor::Crowd::iterator Acceptor::next_to_close() {
  const auto silent = std::ranges::find(crowd_, false, &Incoming::has_spoken);
  return silent == crowd_.end() ? crowd_.begin() : silent;
}

Acceptor::Progress Acceptor::advance(Crowd::iterator incoming) {
  try {
    for (;;) {
      std::byte buffer[256];
      const std::size_t space = std::min(sizeof buffer, incoming->handshake.wanted());
      const std::size_t count = space == 0 ? 0 : recv_some(incoming->fd.get(), MutableByteSpan(buffer, space));
      incoming->has_spoken = incoming->has_spoken || count != 0;
      incoming->handshake.feed({reinterpret_cast<const char*>(buffer), count});
      const Bytes output = incoming->handshake.take_output();
      // A few hundred bytes fit into the empty buffer of a socket whose peer reads.
      if (send_some(incoming->fd.get(), as_span(ByteView(output))) != output.size()) {
        throw Error(ErrorKind::peer_lost, "the peer does not read its replies");
      }
      if (incoming->handshake.over()) break;
      if (count == 0) return Progress::pending;
    }
    if (incoming->handshake.failure()) throw Error(*incoming->handshake.failure());
    return Progress::admitted;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::aborted) {  // an Admission's, for a peer that expects it
      crowd_.erase(incoming);
    } else {
      refuse(incoming, error.what());
    }
    return Progress::refused;
  }
}

void Acceptor::refuse(Crowd::iterator incoming, std::string_view why) {
  warnings_.warn(fmt::format("{}: refused a connection from {}: {}", what_, incoming->from, why));
  crowd_.erase(incoming);
}

}  // namespace lockstep::internal
