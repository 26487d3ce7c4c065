// How the threads of several groups wait for the same connections.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/doorbell.h"
#include "lockstep/comm/transport/link_claim.h"
#include "lockstep/comm/transport/shared_links.h"

namespace lockstep::internal {
namespace {

constexpr int kMostEvents = 64;
constexpr Duration kLongestSleep = std::chrono::hours(1);

constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
// Of a connection, numbered as LinkClaim does.
constexpr std::uint64_t kNumbers = kMaxConnections + 1;
std::uint64_t event_id(int peer, std::uint32_t number) { return static_cast<std::uint64_t>(peer) * kNumbers + number; }

// As epoll_wait() takes them, rounded up.
int milliseconds(Duration most) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(most).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, INT_MAX));
}

}  // namespace

void SharedLinks::watch_leader() { watch(wake_.get(), EPOLLIN, kWakeId); }

void SharedLinks::watch_connection(const TcpPeer& peer, std::uint32_t connection, int fd) {
  const std::uint32_t hang_up = connection == kControlLink ? 0U : EPOLLRDHUP;
  watch(fd, EPOLLIN | EPOLLOUT | EPOLLET | hang_up, event_id(peer.number(), connection));
}

void SharedLinks::watch(int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error("watching a connection failed", errno);
  }
}

template <class Use>
bool SharedLinks::any_stream(const GroupLinks& group, Interests interests, Use&& use) {
  for (const Mesh::Interest& each : interests) {
    GroupStream* const stream = group.by_rank[static_cast<std::size_t>(each.peer)];
    if (stream == nullptr) continue;
    TcpPeer& peer = this->peer(stream->peer);
    const PeerLock lock(*this, peer);
    if (use(peer, *stream, each)) return true;
  }
  return false;
}

bool SharedLinks::is_ready(const GroupLinks& group, Interests interests) {
  return any_stream(group, interests, [](TcpPeer& peer, const GroupStream& stream, const Mesh::Interest& each) {
    return peer.is_ready(stream, each.readable, each.writable);
  });
}

void SharedLinks::sleep(GroupLinks& group, Interests interests, Duration most) {
  const TimePoint start = steady_clock().now();
  const Duration limit = std::min(most, kLongestSleep);
  const auto leave = [&] {
    any_stream(group, interests, [](TcpPeer& peer, GroupStream& stream, const Mesh::Interest&) {
      peer.delist(stream);
      return false;
    });
    group.has_news.exchange(false);
    if (leader_ == nullptr) wake_follower();
  };
  try {
    // From here on whatever happens to these streams is news.
    any_stream(group, interests, [](TcpPeer& peer, GroupStream& stream, const Mesh::Interest& each) {
      peer.enlist(stream, each.readable, each.writable);
      return false;
    });
    bool is_new = is_ready(group, interests);
    for (Duration left = limit; !is_new && !group.has_news;) {
      is_new = sleep_once(group, left) == Slept::leading && is_ready(group, interests);
      left = limit - (steady_clock().now() - start);
      if (left <= Duration::zero()) break;
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

SharedLinks::Slept SharedLinks::sleep_once(GroupLinks& group, Duration most) {
  GroupLinks* nobody = nullptr;
  if (leader_.compare_exchange_strong(nobody, &group)) {
    lead(group, most);
    return Slept::leading;
  }
  follow(group, most);
  return Slept::following;
}

void SharedLinks::lead(GroupLinks& group, Duration most) {
  epoll_event events[kMostEvents];
  group.is_leading = true;
  const int timeout = group.has_news ? 0 : milliseconds(most);
  const int count = ::epoll_wait(epoll_.get(), events, kMostEvents, timeout);
  const int error = errno;
  const std::span<const epoll_event> found(events, static_cast<std::size_t>(std::max(count, 0)));
  if (std::ranges::any_of(found, [](const epoll_event& each) { return each.data.u64 == kWakeId; })) {
    std::uint64_t calls = 0;  // read by nobody but the leader, whom it wakes
    [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &calls, sizeof calls);
  }
  group.is_leading = false;
  leader_ = nullptr;
  wake_follower();  // it leads while this thread takes the events
  if (count < 0 && error != EINTR) throw system_error("waiting for peers failed", error);
  take(found, group);
}

void SharedLinks::follow(GroupLinks& group, Duration most) {
  {
    const std::lock_guard lock(followers_mutex_);
    followers_.push_back(&group);
  }
  sleep_at(
      group.bell, [&] { return group.has_news || leader_ == nullptr; }, most);
  const std::lock_guard lock(followers_mutex_);
  std::erase(followers_, &group);
}

// So that one of those who sleep becomes the leader.
void SharedLinks::wake_follower() noexcept {
  const std::lock_guard lock(followers_mutex_);
  if (!followers_.empty()) ring(followers_.back()->bell);
}

void SharedLinks::look(GroupLinks& group) {
  epoll_event events[kMostEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kMostEvents, 0);
  if (count < 0 && errno != EINTR) throw system_error("waiting for peers failed", errno);
  take({events, static_cast<std::size_t>(std::max(count, 0))}, group);
}

void SharedLinks::take(std::span<const epoll_event> events, const GroupLinks& me) {
  for (const epoll_event& event : events) {
    if (event.data.u64 == kWakeId) continue;
    TcpPeer& peer = this->peer(static_cast<int>(event.data.u64 / kNumbers));
    peer.note_events(event.data.u64 % kNumbers, event.events);
    serve(peer, &me);
  }
}

}  // namespace lockstep::internal
