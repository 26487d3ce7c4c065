#include "lockstep/comm/transport/tcp_streams.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::internal {

TcpStreams::TcpStreams(std::vector<UniqueFd> connections, Checksums checksums)
    : connections_(std::move(connections)), ready_(connections_.size()) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    senders_.emplace_back(checksums);
    receivers_.emplace_back(checksums);
  }
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

bool TcpStreams::is_within_block_of(GroupId group) const {
  return std::ranges::any_of(
      senders_, [group](const CheckedSender& each) { return each.is_within_block() && each.group() == group; });
}

TcpStreams::Step TcpStreams::send(GroupId group, ByteSpan data, BlockObserver& observer) {
  while (is_writable() && !data.empty()) {
    const std::size_t at = turn(sent_);
    const int fd = connections_[at].get();
    CheckedSender& sender = senders_[at];
    const bool was_within = sender.is_within_block();
    const bool is_others = was_within && sender.group() != group;
    const ByteSpan part = is_others ? sender.rest() : data.first(limit(sent_, data.size()));
    const Step step =
        move(sent_, ready_[at].writable, [&] { return is_others ? sender.flush(fd) : sender.send(fd, group, part); });
    const bool is_within = sender.is_within_block();
    if (!was_within && (is_within || step.bytes != 0)) observer.begun(group, sender.block_bytes());
    if (is_others) observer.flushed(sender.group(), part.first(step.bytes));
    if (!is_within && (was_within || step.bytes != 0)) observer.ended(sender.group(), sender.block_bytes());
    if (!is_others || step.is_blocked || !step.failure.empty()) {
      return {is_others ? 0 : step.bytes, step.is_blocked, step.failure};
    }
  }
  return {};
}

TcpStreams::Step TcpStreams::finish(GroupId group, BlockObserver& observer) {
  while (is_writable() && is_within_block_of(group)) {
    const std::size_t at = turn(sent_);
    CheckedSender& sender = senders_[at];
    Step step = move(sent_, ready_[at].writable, [&] { return sender.flush(connections_[at].get()); });
    if (!sender.is_within_block()) observer.ended(group, sender.block_bytes());
    step.bytes = 0;
    if (step.is_blocked || !step.failure.empty()) return step;
  }
  return {};
}

TcpStreams::Step TcpStreams::receive_next(GroupId group, MutableByteSpan space, ByteSpan& elsewhere, GroupId& of) {
  const std::size_t at = turn(received_);
  const int fd = connections_[at].get();
  const MutableByteSpan part = space.first(limit(received_, space.size()));
  Step step = move(received_, ready_[at].readable, [&] {
    const CheckedReceiver::Found found = receivers_[at].receive(fd, group, part);
    of = found.group;
    elsewhere = found.elsewhere;
    return found.count;
  });
  const bool has_ended = step.bytes == 0 && !step.is_blocked && step.failure.empty();
  if (has_ended) step.failure = "its process ended or closed the connection";
  return step;
}

TcpStreams::Step TcpStreams::receive(GroupId group, MutableByteSpan space, BlockObserver& observer) {
  while (is_readable() && !space.empty()) {
    GroupId of = 0;
    ByteSpan elsewhere;
    const Step step = receive_next(group, space, elsewhere, of);
    if (elsewhere.empty()) return step;
    observer.arrived(of, elsewhere);
  }
  return {};
}

TcpStreams::Step TcpStreams::receive_all(BlockObserver& observer) {
  while (is_readable()) {
    GroupId of = 0;
    ByteSpan elsewhere;
    const Step step = receive_next(0, {}, elsewhere, of);
    if (elsewhere.empty()) return step;
    observer.arrived(of, elsewhere);
  }
  return {};
}

bool TcpStreams::is_readable() const {
  if (!has_connections()) return false;
  const std::size_t at = turn(received_);
  return ready_[at].readable || receivers_[at].has_data();
}

void TcpStreams::note_events(std::size_t connection, std::uint32_t events) {
  const std::uint32_t over = EPOLLHUP | EPOLLERR;
  Readiness& ready = ready_[connection];
  if ((events & (EPOLLIN | EPOLLRDHUP | over)) != 0) ready.readable = true;
  if ((events & (EPOLLOUT | over)) != 0) ready.writable = true;
}

}  // namespace lockstep::internal
