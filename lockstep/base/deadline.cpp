#include "lockstep/base/deadline.h"

#include <algorithm>
#include <climits>

namespace lockstep {

Duration Deadline::remaining(TimePoint now) const {
  if (is_never()) return Duration::max();
  return std::max<Duration>(when() - now, Duration::zero());
}

int Deadline::poll_timeout_ms(int cap_ms) const {
  if (is_never()) return cap_ms;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
  const int ms = static_cast<int>(std::min<std::int64_t>(left, INT_MAX));
  return cap_ms >= 0 ? std::min(ms, cap_ms) : ms;
}

}  // namespace lockstep
