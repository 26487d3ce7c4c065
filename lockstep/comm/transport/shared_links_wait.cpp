// How the threads of several groups wait for the same connections.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/doorbell.h"
#include "lockstep/comm/transport/shared_links.h"

namespace lockstep::internal {
namespace {

constexpr int kMostEvents = 64;
constexpr Duration kLongestSleep = std::chrono::hours(1);

constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
// Of a connection: 0 for control, else 1 + the index of one for data.
constexpr std::uint64_t kNumbers = kMaxConnections + 1;
std::uint64_t event_id(int peer, std::uint64_t number) { return static_cast<std::uint64_t>(peer) * kNumbers + number; }

// As epoll_wait() takes them, rounded up.
int milliseconds(Duration most) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(most).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, INT_MAX));
}

}  // namespace

void SharedLinks::watch_all(const std::vector<TcpLink>& links) {
  watch(wake_.get(), EPOLLIN, kWakeId);
  for (int number = 0; number < static_cast<int>(links.size()); ++number) {
    const TcpLink& link = links[static_cast<std::size_t>(number)];
    if (number == rank_) continue;
    watch(link.control.get(), EPOLLIN | EPOLLOUT | EPOLLET, event_id(number, 0));
    for (std::size_t i = 0; i < link.data.size(); ++i) {
      watch(link.data[i].get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, event_id(number, i + 1));
    }
  }
}

void SharedLinks::watch(int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error("watching a connection failed", errno);
  }
}

bool SharedLinks::is_ready(const GroupLinks& group, Interests interests) {
  const std::lock_guard lock(mutex_);
  return has_ready(group, interests);
}

bool SharedLinks::has_ready(const GroupLinks& group, Interests interests) {
  return std::ranges::any_of(interests, [&](const Mesh::Interest& each) {
    const GroupStream* const stream = group.by_rank[static_cast<std::size_t>(each.peer)];
    if (stream == nullptr) return false;
    const TcpPeer& other = peer(stream->peer);
    if (each.readable) {
      if (!stream->arrived.empty() || stream->has_ended()) return true;
      if (other.damaged.empty() && other.streams.is_readable()) return true;
    }
    if (!each.writable) return false;
    if (!stream->flushed.empty()) return true;
    const bool may_send = stream->credit != 0 || other.streams.is_within_block_of(group.id);
    return may_send && other.streams.is_writable();
  });
}

void SharedLinks::sleep(GroupLinks& group, Interests interests, Duration most) {
  const TimePoint start = steady_clock().now();
  const Duration limit = std::min(most, kLongestSleep);
  std::unique_lock lock(mutex_);
  group.interests = interests;
  waiting_.push_back(&group);
  const auto leave = [&] {
    group.interests = {};
    group.has_news = false;
    std::erase(waiting_, &group);
    if (leader_ == nullptr && !waiting_.empty()) internal::wake(waiting_.front()->bell);
  };
  try {
    for (Duration left = limit; !group.has_news && !has_ready(group, interests);) {
      if (leader_ == nullptr) {
        lead(group, left, lock);
      } else {
        follow(group, left, lock);
      }
      left = limit - (steady_clock().now() - start);
      if (left <= Duration::zero()) break;
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void SharedLinks::lead(GroupLinks& group, Duration most, std::unique_lock<std::mutex>& lock) {
  epoll_event events[kMostEvents];
  leader_ = &group;
  lock.unlock();
  const int count = ::epoll_wait(epoll_.get(), events, kMostEvents, milliseconds(most));
  const int error = errno;
  lock.lock();
  leader_ = nullptr;
  if (count < 0 && error != EINTR) throw system_error("waiting for peers failed", error);
  take({events, static_cast<std::size_t>(std::max(count, 0))}, group, true);
}

void SharedLinks::follow(GroupLinks& group, Duration most, std::unique_lock<std::mutex>& lock) {
  const std::uint32_t heard = group.bell.rings.load(std::memory_order_acquire);
  group.bell.sleeping = 1;
  lock.unlock();
  futex_wait(group.bell, heard, most);
  lock.lock();
  group.bell.sleeping = 0;
}

void SharedLinks::look(GroupLinks& group) {
  const std::lock_guard lock(mutex_);
  epoll_event events[kMostEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kMostEvents, 0);
  if (count < 0 && errno != EINTR) throw system_error("waiting for peers failed", errno);
  take({events, static_cast<std::size_t>(std::max(count, 0))}, group, leader_ == nullptr);
}

// Another thread may have taken the events, and wait for the lock.
void SharedLinks::look_at_control() {
  const std::lock_guard lock(mutex_);
  for (int each = 0; each < static_cast<int>(peers_.size()); ++each) read_control(each);
}

void SharedLinks::take(std::span<const epoll_event> events, const GroupLinks& me, bool is_leader) {
  for (const epoll_event& event : events) {
    if (event.data.u64 == kWakeId) {
      std::uint64_t calls = 0;  // for the leader, who may still sleep
      if (is_leader) [[maybe_unused]]
        const ssize_t bytes = ::read(wake_.get(), &calls, sizeof calls);
      continue;
    }
    const int from = static_cast<int>(event.data.u64 / kNumbers);
    const std::uint64_t number = event.data.u64 % kNumbers;
    if (number != 0) {
      peer(from).streams.note_events(number - 1, event.events);
      receive_for_sleepers(from, me);
      continue;
    }
    if ((event.events & EPOLLOUT) != 0) peer(from).flush_control();
    read_control(from);
  }
}

void SharedLinks::receive_for_sleepers(int from, const GroupLinks& me) {
  const auto awaited = [&](bool Mesh::Interest::*what) {
    return [&, what](const GroupLinks* each) { return each != &me && each->awaits(from, what); };
  };
  if (peer(from).streams.is_readable() && std::ranges::any_of(waiting_, awaited(&Mesh::Interest::readable))) {
    receive_all(from);
    // It is over: each that waits for it sees for itself.
    if (peer(from).streams.is_readable()) {
      for (GroupLinks* each : waiting_) {
        if (each->awaits(from, &Mesh::Interest::readable)) notify(*each);
      }
    }
  }
  if (!peer(from).streams.is_writable()) return;
  for (GroupLinks* each : waiting_) {
    if (each != &me && each->awaits(from, &Mesh::Interest::writable)) notify(*each);
  }
}

void SharedLinks::notify(GroupLinks& group) noexcept {
  group.has_news = true;
  if (leader_ == &group) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  } else {
    internal::wake(group.bell);
  }
}

void SharedLinks::wake(GroupLinks& group) noexcept {
  const std::lock_guard lock(mutex_);
  notify(group);
}

}  // namespace lockstep::internal
