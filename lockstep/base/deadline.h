// A Deadline is the moment at which a blocking call gives up. It is passed down unchanged, never restarted per retry.
// A value type.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep {

class Deadline {
 public:
  static Deadline after(Duration timeout, const Clock& clock = steady_clock()) {
    const TimePoint now = clock.now();
    return timeout >= TimePoint::max() - now ? never() : Deadline(now + timeout);
  }
  static Deadline at(TimePoint when) { return Deadline(when); }
  static Deadline never() { return Deadline(TimePoint::max()); }

  TimePoint when() const { return when_; }
  bool is_never() const { return when_ == TimePoint::max(); }
  bool expired(TimePoint now = steady_clock().now()) const { return !is_never() && now >= when_; }
  // Never negative; Duration::max() for never().
  Duration remaining(TimePoint now = steady_clock().now()) const;
  // The argument for poll(2): -1 for never(), otherwise rounded up to whole milliseconds, at most `cap_ms` (if >= 0).
  int poll_timeout_ms(int cap_ms = -1) const;

  friend bool operator<(Deadline a, Deadline b) { return a.when_ < b.when_; }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

}  // namespace lockstep
