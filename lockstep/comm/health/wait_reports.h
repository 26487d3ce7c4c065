// When somebody who waits says so in the log: after a while, and then more and more rarely.
#pragma once

#include <optional>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// After half a minute nobody believes that all is well.
inline constexpr Duration kFirstReport = std::chrono::seconds(30);

// Pure.
class WaitReports {
 public:
  // first: the wait after which it speaks. Then after 4 times as long, 20 times, and again every 60 times: by default
  // 30 s, 2 min, 10 min, every 30 min.
  explicit WaitReports(Duration first = kFirstReport) : first_(first), next_(first) {}

  // How long the wait will have lasted when it speaks next.
  Duration next() const { return next_; }
  // Whether to speak now; at most once for each time that it asks for.
  bool is_due(Duration waited) {
    if (waited < next_) return false;
    while (next_ <= waited) next_ = following();
    return true;
  }

 private:
  Duration following() const {
    if (first_ >= Duration::max() / 64) return Duration::max();
    if (next_ < 4 * first_) return 4 * first_;
    if (next_ < 20 * first_) return 20 * first_;
    return next_ < 60 * first_ ? 60 * first_ : next_ + 60 * first_;
  }

  Duration first_;
  Duration next_;
};

// The same for a wait that begins when this is made. Not thread-safe.
class LongWait {
 public:
  explicit LongWait(Duration first = kFirstReport, const Clock& clock = steady_clock())
      : clock_(clock), start_(clock.now()), reports_(first) {}

  // How long the wait has lasted, if that is to be told now.
  std::optional<Duration> due() {
    const Duration waited = clock_.now() - start_;
    return reports_.is_due(waited) ? std::optional(waited) : std::nullopt;
  }

 private:
  const Clock& clock_;
  const TimePoint start_;
  WaitReports reports_;
};

}  // namespace lockstep::internal
