// A LongWait says when it is time to tell somebody that a wait takes long: once after `first`, then after twice as long
// each time. Not thread-safe.
#pragma once

#include <optional>

#include "lockstep/base/clock.h"

namespace lockstep {

inline constexpr Duration kLongWait = std::chrono::seconds(30);

class LongWait {
 public:
  explicit LongWait(Duration first = kLongWait, const Clock& clock = steady_clock())
      : clock_(clock), start_(clock.now()), next_(first) {}

  // How long the wait has lasted, if that is to be told now.
  std::optional<Duration> due() {
    const Duration waited = clock_.now() - start_;
    if (waited < next_) return std::nullopt;
    next_ = waited * 2;
    return waited;
  }

 private:
  const Clock& clock_;
  TimePoint start_;
  Duration next_;
};

}  // namespace lockstep
