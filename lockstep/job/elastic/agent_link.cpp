#include "lockstep/job/elastic/agent_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kCompactBytes = std::size_t{1} << 20;
constexpr int kMostReads = 64;  // in a row, so that one link does not keep the others waiting

SocketAddress address_of_peer(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&storage), length};
}

}  // namespace

Duration host_timeout() {
  const auto told = EnvironmentReader().duration("LOCKSTEP_HOST_TIMEOUT");
  return told ? *told : kHostTimeout;
}

// Shorter than what ranks take for the loss of a host, so that agents notice it first.
AgentLink::AgentLink(UniqueFd fd, PeerIdentity peer)
    : silence_(host_timeout() * 5 / 6),
      fd_(std::move(fd)),
      peer_(std::move(peer)),
      own_address_(local_address(fd_.get()).host()),
      peer_address_(address_of_peer(fd_.get()).host()),
      beat_at_(Deadline::after(kBeat)),
      silent_at_(Deadline::after(silence_)) {}

void AgentLink::send(const AgentMessage& message) {
  if (failed()) return;
  if (queued_.size() - sent_ > kMostQueuedBytes)
    return fail("its agent does not read what the coordinator sends: it is stopped or hangs");
  queued_.append(frame(encode(message), kMostAgentMessageBytes));
  write();
}

std::optional<AgentMessage> AgentLink::take() {
  try {
    while (auto payload = received_.next()) {
      AgentMessage message = decode_agent_message(*payload);
      if (!std::holds_alternative<HostAlive>(message)) return message;
    }
  } catch (const Error& error) {
    fail(error.what());
    received_ = FrameBuffer(kMostAgentMessageBytes);
  }
  return std::nullopt;
}

pollfd AgentLink::wanted() const {
  const bool writing = sent_ < queued_.size();
  return {failed() ? -1 : fd_.get(), static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), 0};
}

Deadline AgentLink::wake_at() const { return failed() ? Deadline::never() : std::min(beat_at_, silent_at_); }

void AgentLink::tend() {
  if (failed()) return;
  read();
  if (beat_at_.expired()) {
    look_if_received();
    send(HostAlive{});
    beat_at_ = Deadline::after(kBeat);
  }
  write();
  if (!failed() && silent_at_.expired()) look_at_silence();
}

void AgentLink::look_at_silence() {
  if (!host_answers()) {
    silent_ = true;
    return fail(
        fmt::format("nothing has arrived from its agent for {:.1f} s (--rdzv-conf host_timeout=)", seconds(silence_)));
  }
  // Its host must have answered all the time. If it has not, look_if_received() decides, or the network was cut and
  // the agent's messages are still on their way.
  silent_at_ = Deadline::after(kBeat);
  if (steady_clock().now() - unacknowledged_.last_gap() < silence_) return;
  if (!frozen_since_) frozen_since_ = steady_clock().now() - silence_;
  if (frozen_for() >= kFrozenLimit) give_up_frozen();
}

void AgentLink::look_if_received() {
  const TimePoint now = steady_clock().now();
  unacknowledged_.look(Unacknowledged::sent_by(fd_.get()), now);
  if (unacknowledged_.lasts(now) < silence_) return;
  silent_ = true;
  fail(fmt::format("its host has acknowledged no data for {:.1f} s (--rdzv-conf host_timeout=)", seconds(silence_)));
}

// Heartbeats are sent all the time, so there is always something that the kernel of the other host has to acknowledge.
bool AgentLink::host_answers() const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv)) < silence_;
}

Duration AgentLink::frozen_for() const { return frozen_since_ ? steady_clock().now() - *frozen_since_ : Duration{}; }

void AgentLink::give_up_frozen() {
  silent_ = true;
  fail(fmt::format("its agent has been silent for {:.0f} s, although its host answers: it is stopped or hangs",
                   seconds(frozen_for())));
}

void AgentLink::read() {
  Bytes buffer(kReadBytes, '\0');
  try {
    for (int i = 0; i < kMostReads; ++i) {
      const std::size_t got = recv_some(fd_.get(), as_span(buffer));
      if (got == 0) return;
      received_.append(ByteView(buffer).substr(0, got));
      silent_at_ = Deadline::after(silence_);
      frozen_since_.reset();
      if (got < buffer.size()) return;
    }
  } catch (const Error& error) {
    fail("its agent has closed the connection");
  }
}

void AgentLink::write() {
  try {
    while (!failed() && sent_ < queued_.size()) {
      const std::size_t count = send_some(fd_.get(), as_span(ByteView(queued_).substr(sent_)));
      if (count == 0) return;
      sent_ += count;
    }
  } catch (const Error&) {
    // What has arrived before the end is still to be read.
    read();
    fail("its agent has closed the connection");
  }
  if (sent_ == queued_.size()) {
    queued_.clear();
    sent_ = 0;
  } else if (sent_ > kCompactBytes) {
    queued_.erase(0, sent_);
    sent_ = 0;
  }
}

void AgentLink::fail(const std::string& why) {
  if (failed()) return;
  why_ = why;
}

void AgentLink::flush(Deadline deadline) {
  while (!failed() && sent_ < queued_.size() && !deadline.expired()) {
    pollfd entry{fd_.get(), POLLOUT, 0};
    ::poll(&entry, 1, deadline.poll_timeout_ms());
    write();
  }
}

}  // namespace lockstep::internal
