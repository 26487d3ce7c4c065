#include "lockstep/net/acceptor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/format.h"
#include "lockstep/net/socket.h"

namespace lockstep {
namespace {

// How long a newcomer may take to speak while others want its place.
constexpr Duration kPatience = std::chrono::milliseconds(20);

}  // namespace

Acceptor::Acceptor(std::string what, std::vector<Listener> listeners, HandshakeSettings settings, Admission admission)
    : what_(std::move(what)),
      listeners_(std::move(listeners)),
      settings_(std::move(settings)),
      admission_(std::move(admission)) {}

std::optional<Acceptor::Arrival> Acceptor::next(Deadline deadline) {
  for (;;) {
    // Before anybody has to leave, everybody has been listened to.
    if (auto arrival = advance_all()) return arrival;
    accept_all();
    if (auto arrival = advance_all()) return arrival;
    if (deadline.expired()) return std::nullopt;
    wait(deadline);
  }
}

std::optional<Acceptor::Arrival> Acceptor::advance_all() {
  for (auto each = crowd_.begin(); each != crowd_.end();) {
    const Progress progress = advance(*each);
    if (progress == Progress::pending) {
      ++each;
      continue;
    }
    Incoming done = std::move(*each);
    each = crowd_.erase(each);
    if (progress == Progress::admitted) return Arrival{std::move(done.fd), done.handshake.peer()};
  }
  return std::nullopt;
}

void Acceptor::accept_all() {
  for (Listener& listener : listeners_) {
    for (;;) {
      if (is_full() && !patience().expired()) return;
      UniqueFd fd = listener.accept();
      if (!fd) break;
      if (is_full()) {
        const auto leaves = least_welcome();
        refuse(*leaves, "too many connections are in their handshake, and this one is the oldest");
        crowd_.erase(leaves);
      }
      std::string from = describe_peer(fd.get());
      crowd_.push_back(
          {std::move(fd), std::move(from), Handshake::server(settings_, admission_), steady_clock().now()});
    }
  }
}

Acceptor::Crowd::iterator Acceptor::least_welcome() {
  const auto silent = std::ranges::find(crowd_, false, &Incoming::has_spoken);
  return silent == crowd_.end() ? crowd_.begin() : silent;
}

Deadline Acceptor::patience() { return Deadline::at(least_welcome()->since + kPatience); }

Acceptor::Progress Acceptor::advance(Incoming& incoming) {
  try {
    for (;;) {
      std::byte buffer[256];
      const std::size_t space = std::min(sizeof buffer, incoming.handshake.wanted());
      const std::size_t count = space == 0 ? 0 : recv_some(incoming.fd.get(), MutableByteSpan(buffer, space));
      incoming.has_spoken = incoming.has_spoken || count != 0;
      incoming.handshake.feed({reinterpret_cast<const char*>(buffer), count});
      const Bytes output = incoming.handshake.take_output();
      // A few hundred bytes fit into an empty socket buffer; if not, the peer is up to no good.
      if (send_some(incoming.fd.get(), as_span(ByteView(output))) != output.size()) {
        throw Error(ErrorKind::peer_lost, "it does not read");
      }
      if (incoming.handshake.over()) break;
      if (count != 0) continue;
      if (steady_clock().now() < incoming.since + kHandshakeTimeout) return Progress::pending;
      throw Error(ErrorKind::timeout, "its handshake took too long");
    }
    if (incoming.handshake.failure()) throw Error(*incoming.handshake.failure());
    return Progress::admitted;
  } catch (const Error& error) {
    refuse(incoming, error.what());
    return Progress::refused;
  }
}

void Acceptor::refuse(const Incoming& incoming, std::string_view why) {
  complaints_.warn(fmt::format("{}: refused a connection from {}: {}", what_, incoming.from, why));
}

void Acceptor::wait(Deadline deadline) {
  Deadline next = deadline;
  std::vector<pollfd> polled;
  for (const Incoming& each : crowd_) {
    next = std::min(next, Deadline::at(each.since + kHandshakeTimeout));
    polled.push_back({each.fd.get(), POLLIN, 0});
  }
  bool accepts = true;
  if (is_full()) {
    accepts = patience().expired();
    if (!accepts) next = std::min(next, patience());
  }
  for (const Listener& each : listeners_) polled.push_back({accepts ? each.fd() : -1, POLLIN, 0});
  if (::poll(polled.data(), polled.size(), next.poll_timeout_ms()) < 0 && errno != EINTR) {
    throw system_error("waiting for connections failed", errno);
  }
}

}  // namespace lockstep
