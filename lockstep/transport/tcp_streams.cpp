#include "lockstep/transport/tcp_streams.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep {

TcpStreams::TcpStreams(std::vector<UniqueFd> connections, Checksums checksums)
    : connections_(std::move(connections)), ready_(connections_.size()) {
  if (checksums == Checksums::off) return;
  senders_.resize(connections_.size());
  receivers_.resize(connections_.size());
}

std::size_t TcpStreams::limit(std::uint64_t position, std::size_t bytes) const {
  return connections_.size() == 1 ? bytes : std::min<std::size_t>(bytes, kStripeBytes - position % kStripeBytes);
}

template <class Call>
TcpStreams::Step TcpStreams::move(std::uint64_t& position, bool& ready, Call&& call) {
  for (;;) {
    const ssize_t count = call();
    if (count >= 0) {
      position += static_cast<std::uint64_t>(count);
      return {.bytes = static_cast<std::size_t>(count)};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ready = false;
      return {.is_blocked = true};
    }
    if (errno != EINTR) return {.failure = std::strerror(errno)};
  }
}

TcpStreams::Step TcpStreams::send(ByteSpan data) {
  if (!is_writable() || data.empty()) return {};
  const std::size_t at = turn(sent_);
  const int fd = connections_[at].get();
  const ByteSpan part = data.first(limit(sent_, data.size()));
  return move(sent_, ready_[at].writable, [&] {
    if (!senders_.empty()) return senders_[at].send(fd, part);
    return ::send(fd, part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

TcpStreams::Step TcpStreams::receive(MutableByteSpan space) {
  if (!is_readable() || space.empty()) return {};
  const std::size_t at = turn(received_);
  const int fd = connections_[at].get();
  const MutableByteSpan part = space.first(limit(received_, space.size()));
  Step step = move(received_, ready_[at].readable, [&] {
    if (!receivers_.empty()) return receivers_[at].receive(fd, part);
    return ::recv(fd, part.data(), part.size(), MSG_DONTWAIT);
  });
  const bool has_ended = step.bytes == 0 && !step.is_blocked && step.failure.empty();
  if (has_ended) step.failure = "its process ended or closed the connection";
  return step;
}

bool TcpStreams::is_readable() const {
  const std::size_t at = turn(received_);
  return ready_[at].readable || (!receivers_.empty() && receivers_[at].has_data());
}

void TcpStreams::note_events(std::size_t connection, std::uint32_t events) {
  const std::uint32_t over = EPOLLHUP | EPOLLERR;
  Readiness& ready = ready_[connection];
  if ((events & (EPOLLIN | EPOLLRDHUP | over)) != 0) ready.readable = true;
  if ((events & (EPOLLOUT | over)) != 0) ready.writable = true;
}

}  // namespace lockstep
