#include "lockstep/comm/group/turns.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/wait_until.h"

namespace lockstep::internal {

bool Turns::take_slowly(Deadline deadline) {
  Place place;
  std::unique_lock lock(mutex_);
  join_line(place, deadline);
  const auto has_turn = [&] { return place.has_turn_; };
  if (wait_until(place.changed_, lock, deadline, has_turn)) return true;
  remove(place);
  return false;
}

void Turns::line_up(Place& place, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  place.is_watched_ = true;
  place.is_late_ = false;
  const Deadline latest = latest_;
  join_line(place, deadline);
  // Behind calls that end in time, it will have its turn in time.
  if (place.has_turn_ || !(deadline < latest)) return;
  try {
    if (!watcher_.joinable()) {
      const SignalBlock block = SignalBlock::of_new_thread();
      watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    }
  } catch (const std::system_error& error) {
    remove(place);
    throw Error(ErrorKind::internal, std::string("cannot start the thread that watches the deadlines of calls: ") +
                                         error.what() + "; raise the limit on processes (ulimit -u) if it is reached");
  } catch (...) {  // no memory for it
    remove(place);
    throw;
  }
  watched_.notify_all();
}

bool Turns::await(Place& place) {
  std::unique_lock lock(mutex_);
  place.changed_.wait(lock, [&] { return place.has_turn_ || place.is_late_; });
  return place.has_turn_;
}

void Turns::join_line(Place& place, Deadline deadline) {
  place.deadline_ = deadline;
  place.has_turn_ = false;
  place.next_ = nullptr;
  std::uint32_t seen = kFree;
  if (state_.compare_exchange_strong(seen, kInLine, std::memory_order_acquire)) {
    place.has_turn_ = true;
    latest_ = deadline;
    return;
  }
  // From now on leave() asks who is next. It may come first.
  if (seen == kTaken && !state_.compare_exchange_strong(seen, kInLine) && seen == kFree) {
    return join_line(place, deadline);
  }
  (last_ == nullptr ? first_ : last_->next_) = &place;
  last_ = &place;
  latest_ = std::max(latest_, deadline);
}

void Turns::remove(Place& place) {
  Place* before = nullptr;
  for (Place* each = first_; each != &place; each = each->next_) before = each;
  (before == nullptr ? first_ : before->next_) = place.next_;
  if (last_ == &place) last_ = before;
}

void Turns::hand_over() noexcept {
  const std::lock_guard lock(mutex_);
  if (first_ == nullptr) {
    latest_ = Deadline::never();  // who finds it free does not say
    state_.store(kFree, std::memory_order_release);
    return;
  }
  Place& next = *std::exchange(first_, first_->next_);
  if (first_ == nullptr) last_ = nullptr;
  next.has_turn_ = true;
  next.changed_.notify_one();  // under the lock: it may be gone right behind it
}

Deadline Turns::first_deadline() const {
  Deadline first = Deadline::never();
  for (const Place* each = first_; each != nullptr; each = each->next_) {
    if (each->is_watched_) first = std::min(first, each->deadline_);
  }
  return first;
}

void Turns::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const Deadline deadline = first_deadline();
    const auto sooner = [&] { return first_deadline() < deadline; };
    if (deadline.is_never()) {
      watched_.wait(lock, stop, sooner);
    } else {
      watched_.wait_until(lock, stop, deadline.when(), sooner);
    }
    bool any = false;
    for (Place* each = first_; each != nullptr;) {
      Place& place = *std::exchange(each, each->next_);
      if (!place.is_watched_ || !place.deadline_.expired()) continue;
      remove(place);
      place.is_late_ = any = true;
      place.changed_.notify_one();
    }
    if (!any) continue;
    lock.unlock();
    on_late_();
    lock.lock();
  }
}

}  // namespace lockstep::internal
