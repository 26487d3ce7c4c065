// A SuspendDetector adds up for how long a process was suspended: its thread calls beat() every kPeriod, and a gap of
// kGap or more counts. Callers supply the time. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

class SuspendDetector {
 public:
  static constexpr Duration kPeriod = std::chrono::milliseconds(250);
  static constexpr Duration kGap = std::chrono::seconds(1);  // a shorter gap is a busy machine

  explicit SuspendDetector(Duration suspended = {}) : suspended_ns_(suspended.count()) {}

  void beat(TimePoint now);
  // Counts a gap that has just ended, without waiting for the next beat.
  void check(TimePoint now);
  Duration suspended() const { return Duration(suspended_ns_.load(std::memory_order_relaxed)); }

 private:
  std::mutex mutex_;
  TimePoint last_;  // beat, or end of a gap; protected by mutex_
  std::atomic<std::int64_t> suspended_ns_;
};

}  // namespace lockstep::internal
