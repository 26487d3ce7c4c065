// Turns says which call of a group may use its engine: one at a time, in the order in which they lined up.
// call -> Turns -> engine. Thread-safe. Only take() and await() block, and not beyond the call's deadline.
//
// A call that is still in line at its deadline gives up its place. Ranks are out of step from then on, so the caller
// must end the group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

class Turns {
 public:
  // on_late: called when a call that does not wait in take() has given up its place; from a separate thread, which it
  // may not block.
  explicit Turns(std::function<void()> on_late) : on_late_(std::move(on_late)) {}
  // Destroyed when nobody is in line.
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // The place of one call in the line; can be used again once its turn is over.
  class Place {
    friend class Turns;
    Deadline deadline_ = Deadline::never();
    bool is_watched_ = false;  // lined up without waiting, so the watcher looks at its deadline
    bool has_turn_ = false;
    bool is_late_ = false;
    std::condition_variable changed_;
    Place* next_ = nullptr;
  };

  // Lines up and blocks until it is this caller's turn; false if that is not before the deadline.
  [[nodiscard]] bool take(Deadline deadline) { return take_if_free() || take_slowly(deadline); }
  // Does not line up: false if it is another caller's turn.
  [[nodiscard]] bool take_if_free() {
    std::uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire);
  }
  // The same in two steps, of which the first never blocks. Error{internal} if no thread can be started that looks at
  // the deadline: then this caller is not in line.
  void line_up(Place& place, Deadline deadline);
  [[nodiscard]] bool await(Place& place);
  // Ends the turn that take() or await() gave.
  void leave() noexcept {
    std::uint32_t taken = kTaken;
    if (!state_.compare_exchange_strong(taken, kFree, std::memory_order_release)) hand_over();
  }
  // Ends the turn of its maker when it goes out of scope.
  class End {
   public:
    explicit End(Turns& turns) : turns_(turns) {}
    ~End() { turns_.leave(); }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

   private:
    Turns& turns_;
  };
  // Whether it is anybody's turn.
  bool is_taken() const { return state_.load(std::memory_order_relaxed) != kFree; }

 private:
  // kTaken: by a caller that found it free, and nobody is in line; everything else goes through the mutex.
  enum : std::uint32_t { kFree, kTaken, kInLine };

  bool take_slowly(Deadline deadline);
  void join_line(Place& place, Deadline deadline);
  void remove(Place& place);
  void hand_over() noexcept;
  Deadline first_deadline() const;
  void watch(const std::stop_token& stop);

  const std::function<void()> on_late_;
  std::atomic<std::uint32_t> state_{kFree};
  std::mutex mutex_;
  std::condition_variable_any watched_;
  // State below is protected by mutex_.
  Place* first_ = nullptr;
  Place* last_ = nullptr;
  Deadline latest_ = Deadline::never();  // of whose turn it is and all in line
  std::jthread watcher_;                 // made when a call lines up that is to be late before those in front of it
};

}  // namespace lockstep::internal
