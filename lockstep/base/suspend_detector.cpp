#include "lockstep/base/suspend_detector.h"

#include <algorithm>

namespace lockstep::internal {

void SuspendDetector::check(TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (last_ == TimePoint{} || now - last_ < kGap) return;
  suspended_ns_.fetch_add((now - last_).count(), std::memory_order_relaxed);
  last_ = now;
}

void SuspendDetector::beat(TimePoint now) {
  check(now);
  const std::lock_guard lock(mutex_);
  last_ = std::max(last_, now);
}

}  // namespace lockstep::internal
