#include "lockstep/comm/health/watched_store.h"

#include <algorithm>

#include "lockstep/comm/store/store_text.h"

namespace lockstep::internal {

std::vector<std::string> WatchedStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  for (;;) {
    if (watch_->is_over()) return store_->wait(keys, deadline);
    std::vector<std::string> missing = store_->wait(keys, std::min(deadline, Deadline::after(watch_->period())));
    if (missing.empty()) return missing;
    watch_->check(deadline);
    if (deadline.expired()) return missing;
  }
}

Bytes WatchedStore::get(std::string_view key, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  const std::vector<std::string> keys{std::string(key)};
  if (!wait(keys, deadline).empty()) throw missing_keys_error("get", keys, steady_clock().now() - start);
  return store_->get(key, deadline);
}

}  // namespace lockstep::internal
