#include "lockstep/comm/store/file_store.h"

#include <poll.h>

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr int kLongestPauseMs = 10;

// Waits a little before another look, longer each time.
class Pause {
 public:
  void take(Deadline deadline) {
    ::poll(nullptr, 0, deadline.poll_timeout_ms(pause_ms_));
    pause_ms_ = std::min(pause_ms_ * 2, kLongestPauseMs);
  }

 private:
  int pause_ms_ = 1;
};

}  // namespace

FileStore::FileStore(std::string path, std::string_view run_id, Deadline deadline)
    : log_(std::move(path), run_id, deadline) {}

void FileStore::take_turn(std::string_view operation, std::string_view key, Deadline deadline,
                          const std::function<void()>& turn) {
  fork_guard_.check("a store file");
  for (Pause pause;; pause.take(deadline)) {
    {
      const std::lock_guard lock(mutex_);
      if (log_.try_lock()) {
        struct Unlock {
          FileLog& log;
          ~Unlock() { log.unlock(); }
        } unlock{log_};
        log_.read(map_);
        return turn();
      }
    }
    if (deadline.expired()) {
      throw Error(
          ErrorKind::timeout,
          fmt::format("store {} of {} timed out: another process keeps {} locked; is a process of the job stopped?",
                      operation, quote_key(key), log_.path()),
          {.operation = std::string(operation)});
    }
  }
}

// The file must say what the map says; if writing failed, the map is read again from what is there.
void FileStore::publish(std::string_view key) {
  try {
    if (const Bytes* value = map_.find(key)) {
      log_.append_set(key, *value);
    } else {
      log_.append_remove(key);
    }
  } catch (...) {
    map_ = KeyMap();
    log_.rewind();
    throw;
  }
}

void FileStore::set(std::string_view key, ByteView value, Deadline deadline) {
  take_turn("set", key, deadline, [&] {
    map_.set(key, value);
    publish(key);
  });
}

Bytes FileStore::get(std::string_view key, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  const std::vector<std::string> keys{std::string(key)};
  for (;;) {
    if (!wait_for("get", keys, deadline).empty()) {
      throw missing_keys_error("get", keys, steady_clock().now() - start);
    }
    const std::lock_guard lock(mutex_);
    if (const Bytes* value = map_.find(key)) return *value;  // else somebody removed it again
  }
}

std::int64_t FileStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  std::int64_t sum = 0;
  take_turn("add", key, deadline, [&] {
    check_store_key(key);
    sum = map_.add(key, delta);
    publish(key);
  });
  return sum;
}

Bytes FileStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) {
  KeyMap::Compared compared;
  take_turn("compare_set", key, deadline, [&] {
    check_store_key(key);
    compared = map_.compare_set(key, expected, desired);
    if (compared.stored) publish(key);
  });
  return compared.value;
}

std::vector<std::string> FileStore::wait_for(std::string_view operation, const std::vector<std::string>& keys,
                                             Deadline deadline) {
  fork_guard_.check("a store file");
  for (const std::string& key : keys) check_store_key(key);
  std::vector<std::string> missing;
  const auto look = [&] {
    missing.clear();
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(missing),
                 [&](const std::string& key) { return map_.find(key) == nullptr; });
  };
  for (Pause pause;; pause.take(deadline)) {
    bool news = false;
    {
      const std::lock_guard lock(mutex_);
      look();  // another thread of this process may have read the news already
      news = log_.has_news();
    }
    if (news) take_turn(operation, keys.empty() ? "" : keys.front(), deadline, look);
    if (missing.empty() || deadline.expired()) return missing;
  }
}

std::vector<std::string> FileStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  try {
    return wait_for("wait", keys, deadline);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;
    return keys;
  }
}

bool FileStore::check(const std::vector<std::string>& keys, Deadline deadline) {
  for (const std::string& key : keys) check_store_key(key);
  bool all = true;
  take_turn("check", keys.empty() ? "" : keys.front(), deadline, [&] {
    all = std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return map_.find(key) != nullptr; });
  });
  return all;
}

bool FileStore::remove(std::string_view key, Deadline deadline) {
  bool existed = false;
  take_turn("remove", key, deadline, [&] {
    check_store_key(key);
    existed = map_.remove(key);
    if (existed) publish(key);
  });
  return existed;
}

}  // namespace lockstep
