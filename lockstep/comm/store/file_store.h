// A FileStore is a Store in one file that all processes of a job can reach. Thread-safe; calls of several processes
// take turns with a lock, and waiting calls check the file every few milliseconds. The last user removes the file. A
// file of a run that has ended is replaced; a file in use by a run with another id is Error{invalid_argument}, and so
// is every call in a child that was forked later.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/store/file_log.h"
#include "lockstep/comm/store/key_map.h"
#include "lockstep/comm/store/store.h"

namespace lockstep {

class FileStore final : public Store {
 public:
  FileStore(std::string path, std::string_view run_id, Deadline deadline);

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;

 private:
  // Runs `turn` with the file locked and map_ up to date.
  void take_turn(std::string_view operation, std::string_view key, Deadline deadline,
                 const std::function<void()>& turn);
  // Looks until all keys exist or the deadline passes; returns those that are missing.
  std::vector<std::string> wait_for(std::string_view operation, const std::vector<std::string>& keys,
                                    Deadline deadline);
  void publish(std::string_view key);

  const internal::ForkGuard fork_guard_;
  std::mutex mutex_;
  internal::FileLog log_;
  internal::KeyMap map_;
};

}  // namespace lockstep
