#include "lockstep/base/rate_limited_log.h"

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr Duration kInterval = std::chrono::seconds(1);

}  // namespace

bool RateLimitedLog::warn(std::string text) {
  const TimePoint now = clock_.now();
  if (last_ != TimePoint::min() && now - last_ < kInterval) {
    ++kept_back_;
    return false;
  }
  if (kept_back_ > 0) text += fmt::format(" ({} more such lines were kept back)", kept_back_);
  kept_back_ = 0;
  last_ = now;
  log_warning(text);
  return true;
}

}  // namespace lockstep
