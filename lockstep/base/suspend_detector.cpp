#include "lockstep/base/suspend_detector.h"

#include <algorithm>

namespace lockstep {

void SuspendDetector::look(TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (last_ == TimePoint{} || now - last_ < kStop) return;
  stopped_ns_.fetch_add((now - last_).count(), std::memory_order_relaxed);
  last_ = now;
}

void SuspendDetector::beat(TimePoint now) {
  look(now);
  const std::lock_guard lock(mutex_);
  last_ = std::max(last_, now);
}

}  // namespace lockstep
