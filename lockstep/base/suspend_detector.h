// A SuspendDetector adds up the stops of a process whose beats should come every kPeriod. Time is what callers say it is.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "lockstep/base/clock.h"

namespace lockstep {

class SuspendDetector {
 public:
  static constexpr Duration kPeriod = std::chrono::milliseconds(250);
  // Beats that are less apart were late because the machine was busy.
  static constexpr Duration kStop = std::chrono::seconds(1);

  explicit SuspendDetector(Duration stopped = {}) : stopped_ns_(stopped.count()) {}

  void beat(TimePoint now);
  // For whoever cannot wait for the next beat.
  void look(TimePoint now);
  Duration stopped() const { return Duration(stopped_ns_.load(std::memory_order_relaxed)); }

 private:
  std::mutex mutex_;
  TimePoint last_;  // beat, or end of a stop; protected by mutex_
  std::atomic<std::int64_t> stopped_ns_;
};

}  // namespace lockstep
