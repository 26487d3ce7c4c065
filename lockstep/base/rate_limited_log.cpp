#include "lockstep/base/rate_limited_log.h"

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep::internal {
namespace {

constexpr Duration kInterval = std::chrono::seconds(1);

}  // namespace

bool RateLimitedLog::warn(std::string text) {
  const TimePoint now = clock_.now();
  if (last_ != TimePoint::min() && now - last_ < kInterval) {
    ++suppressed_;
    return false;
  }
  if (suppressed_ > 0) text += fmt::format(" ({} similar warnings were suppressed)", suppressed_);
  suppressed_ = 0;
  last_ = now;
  log_warning(text);
  return true;
}

}  // namespace lockstep::internal
