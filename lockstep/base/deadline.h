// A Deadline is the moment at which a blocking call gives up. It is passed down unchanged, never restarted per retry.
// Time in which the whole process was suspended does not count (see suspended_time.h): a deadline moves by it, so code
// that has waited until when() checks expired(). A value type.
#pragma once

#include "lockstep/base/clock.h"
#include "lockstep/base/suspended_time.h"

namespace lockstep {

class Deadline {
 public:
  static Deadline after(Duration timeout, const Clock& clock = steady_clock()) {
    const TimePoint now = clock.now();
    return timeout >= TimePoint::max() - now ? never() : at(now + timeout);
  }
  static Deadline at(TimePoint when) {
    return when == TimePoint::max() ? never() : Deadline(when - internal::suspended_time());
  }
  static Deadline never() { return Deadline(TimePoint::max()); }

  TimePoint when() const { return is_never() ? moment_ : moment_ + internal::suspended_time(); }
  bool is_never() const { return moment_ == TimePoint::max(); }
  bool expired(TimePoint now = steady_clock().now()) const { return now >= when() && !is_never() && is_over(now); }
  // Never negative; Duration::max() for never().
  Duration remaining(TimePoint now = steady_clock().now()) const;
  // The argument for poll(2): -1 for never(), otherwise rounded up to whole milliseconds, at most `cap_ms` (if >= 0).
  int poll_timeout_ms(int cap_ms = -1) const;

  friend bool operator<(Deadline a, Deadline b) { return a.moment_ < b.moment_; }

 private:
  explicit Deadline(TimePoint moment) : moment_(moment) {}
  bool is_over(TimePoint now) const { return now >= moment_ + internal::suspended_time_now(); }

  TimePoint moment_;  // on a clock that stops while the process is suspended
};

}  // namespace lockstep
