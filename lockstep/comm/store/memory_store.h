// A MemoryStore is a Store for the threads of one process. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/comm/store/key_map.h"
#include "lockstep/comm/store/store.h"

namespace lockstep {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  internal::KeyMap map_;
};

}  // namespace lockstep
