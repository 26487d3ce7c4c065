// When a long wait is logged: after a while, and then at growing intervals.
#pragma once

#include <optional>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// A wait of half a minute is unusual.
inline constexpr Duration kFirstReport = std::chrono::seconds(30);

// Pure.
class WaitReports {
 public:
  // first: the wait before the first report. Then after 4 times as long, 20 times, and again every 60 times: by default
  // 30 s, 2 min, 10 min, every 30 min.
  explicit WaitReports(Duration first = kFirstReport) : first_(first), next_(first) {}

  // The length of the wait at the next report.
  Duration next() const { return next_; }
  // Whether to report now; at most once for each of these times.
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

  // How long the wait has lasted, if a report is due.
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
