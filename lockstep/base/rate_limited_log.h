// A RateLimitedLog writes at most one warning a second, and counts what it leaves out: a port scan must not fill the
// disk. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

class RateLimitedLog {
 public:
  explicit RateLimitedLog(const Clock& clock = steady_clock()) : clock_(clock) {}

  // Whether it was written.
  bool warn(std::string text);

 private:
  const Clock& clock_;
  TimePoint last_ = TimePoint::min();
  std::size_t suppressed_ = 0;
};

}  // namespace lockstep::internal
