// A Clock tells monotonic time. Logic that waits takes one, so that tests and simulations can own time.
#pragma once

#include <chrono>

namespace lockstep {

using Duration = std::chrono::nanoseconds;                                       // of every timeout
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;  // of that clock

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

// The machine's monotonic clock. Thread-safe.
const Clock& steady_clock();

// Seconds as a double, for messages and statistics.
inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace lockstep
