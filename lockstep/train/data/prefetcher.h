// Prefetcher makes the items 0, 1, ..., count - 1 ahead of time on worker threads and hands them out in that order.
// make(number) on workers -> bounded window -> next() in the consumer.
// next() is for one thread and blocks until its Deadline. `make` runs on all workers at once and must be thread-safe.
// An exception from make() is thrown by the next() whose item it was; that ends the sequence.
// The destructor stops the workers: it waits for calls of make() that are running, and for nothing else.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/wait_until.h"

namespace lockstep::internal {

template <class Item>
class Prefetcher {
 public:
  using Make = std::function<Item(std::size_t number)>;

  // At most `window` items are made but not yet handed out. workers = 0: next() makes the item itself.
  Prefetcher(std::size_t count, std::size_t workers, std::size_t window, Make make)
      : count_(count), make_(std::move(make)), slots_(workers == 0 ? 0 : window), end_(count) {
    workers_.reserve(workers);
    for (std::size_t i = 0; i < workers; ++i) {
      workers_.emplace_back([this](std::stop_token stop) { work(stop); });
    }
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() {
    // All at once: a jthread's own destructor would leave the others working while it waits for the first.
    for (std::jthread& worker : workers_) worker.request_stop();
  }

  // The next item; empty after the last one.
  std::optional<Item> next(Deadline deadline) {
    if (taken_ == count_) return std::nullopt;
    if (slots_.empty()) {
      const std::size_t number = std::exchange(taken_, count_);  // stays at the end if make() throws
      std::optional<Item> made(make_(number));
      taken_ = number + 1;
      return made;
    }
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[taken_ % slots_.size()];
    const auto filled = [&slot] { return slot.item.has_value() || slot.error != nullptr; };
    if (!wait_until(item_made_, lock, deadline, filled)) {
      throw Error(ErrorKind::timeout, "loader: batch " + std::to_string(taken_) + " of the " + std::to_string(count_) +
                                          " in this pass was not ready in time: get_batch() is stuck, or too slow for "
                                          "the number of workers");
    }
    Slot taken = std::exchange(slot, Slot{});
    taken_ = taken.error ? count_ : taken_ + 1;
    lock.unlock();
    slot_freed_.notify_one();
    if (taken.error) std::rethrow_exception(taken.error);
    return std::move(taken.item);
  }

 private:
  struct Slot {
    std::optional<Item> item;
    std::exception_ptr error;
  };

  void work(std::stop_token stop) {
    for (;;) {
      std::unique_lock lock(mutex_);
      slot_freed_.wait(lock, stop, [this] { return claimed_ >= end_ || claimed_ < taken_ + slots_.size(); });
      if (stop.stop_requested() || claimed_ >= end_) return;
      const std::size_t number = claimed_++;
      lock.unlock();
      Slot made;
      try {
        made.item.emplace(make_(number));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      if (made.error) end_ = 0;
      slots_[number % slots_.size()] = std::move(made);
      lock.unlock();
      item_made_.notify_one();
    }
  }

  const std::size_t count_;
  const Make make_;
  std::mutex mutex_;
  std::condition_variable_any slot_freed_;
  std::condition_variable item_made_;
  std::vector<Slot> slots_;            // item `number` lies in slot number % window
  std::size_t end_;                    // where claiming ends: count_, or 0 after a failure
  std::size_t claimed_ = 0;            // items that a worker has begun
  std::size_t taken_ = 0;              // items that next() has handed out
  std::vector<std::jthread> workers_;  // last, so that they end before the data they use
};

}  // namespace lockstep::internal
