#include "lockstep/comm/store/memory_store.h"

#include <algorithm>

#include "lockstep/base/wait_until.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep {

using namespace internal;

void MemoryStore::set(std::string_view key, ByteView value, Deadline) {
  const std::lock_guard lock(mutex_);
  map_.set(key, value);
  changed_.notify_all();
}

Bytes MemoryStore::get(std::string_view key, Deadline deadline) {
  check_store_key(key);
  const TimePoint start = steady_clock().now();
  std::unique_lock lock(mutex_);
  if (!wait_until(changed_, lock, deadline, [&] { return map_.find(key) != nullptr; })) {
    throw missing_keys_error("get", std::vector<std::string>{std::string(key)}, steady_clock().now() - start);
  }
  return *map_.find(key);
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t delta, Deadline) {
  const std::lock_guard lock(mutex_);
  const std::int64_t sum = map_.add(key, delta);
  changed_.notify_all();
  return sum;
}

Bytes MemoryStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline) {
  check_store_key(key);
  const std::lock_guard lock(mutex_);
  Bytes value = map_.compare_set(key, expected, desired).value;
  changed_.notify_all();
  return value;
}

std::vector<std::string> MemoryStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  for (const std::string& key : keys) check_store_key(key);
  std::unique_lock lock(mutex_);
  const auto is_missing = [&](const std::string& key) { return map_.find(key) == nullptr; };
  wait_until(changed_, lock, deadline, [&] { return std::none_of(keys.begin(), keys.end(), is_missing); });
  std::vector<std::string> missing;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(missing), is_missing);
  return missing;
}

bool MemoryStore::check(const std::vector<std::string>& keys, Deadline) {
  for (const std::string& key : keys) check_store_key(key);
  const std::lock_guard lock(mutex_);
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return map_.find(key) != nullptr; });
}

bool MemoryStore::remove(std::string_view key, Deadline) {
  check_store_key(key);
  const std::lock_guard lock(mutex_);
  return map_.remove(key);
}

}  // namespace lockstep
