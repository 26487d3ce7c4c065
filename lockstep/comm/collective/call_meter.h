// A CallMeter measures how long the collectives of an engine have waited for ranks, and how long they have moved data.
// engine -> CallMeter -> group -> times of training steps. One thread at a time writes; any thread may read. Nothing
// blocks; a change of state costs some nanoseconds.
//
// A collective waits until all ranks that this one needs have entered it, as far as this rank can see that:
//   arena      the ranks have posted; a small collective counts as waiting until its end
//   links      their signatures have arrived; in a tree it counts as waiting until its end
//   carrier    the exchange of signatures is over
// Then it moves. A collective that is posted and that nobody waits for yet does neither.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// Sums over all collectives of a group so far.
struct CallTimes {
  Duration waiting{};
  Duration moving{};
};

class CallMeter {
 public:
  void waits(TimePoint now) { enter(kWaiting, now); }
  void moves(TimePoint now) { enter(kMoving, now); }
  void rests(TimePoint now) { enter(kResting, now); }
  bool is_waiting() const { return state_.load(std::memory_order_relaxed) == kWaiting; }
  bool is_moving() const { return state_.load(std::memory_order_relaxed) == kMoving; }

  // Up to `now`, with what is under way.
  CallTimes at(TimePoint now) const;

 private:
  enum State : std::uint32_t { kResting, kWaiting, kMoving };

  void enter(State state, TimePoint now) {
    if (state_.load(std::memory_order_relaxed) != state) change(state, now);
  }
  void change(State state, TimePoint now);

  // Odd while the words below change; those are released one by one, so a reader that sees a new one also sees this.
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> state_{kResting};
  std::atomic<std::int64_t> since_ns_{0};
  std::atomic<std::int64_t> waiting_ns_{0};
  std::atomic<std::int64_t> moving_ns_{0};
};

}  // namespace lockstep::internal
