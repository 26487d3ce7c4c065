// A PrefixStore is a part of another store: every key is prefixed by "<prefix>/". Thread-safe as the other store is.
// Errors show the whole key, and its limit counts the prefix.
#pragma once

#include <memory>

#include "lockstep/comm/store/store.h"

namespace lockstep {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string_view prefix);

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;
  void last_will(std::string_view key, ByteView value, Deadline deadline) override;

 private:
  std::string whole(std::string_view key) const;
  std::vector<std::string> whole(const std::vector<std::string>& keys) const;

  std::shared_ptr<Store> store_;
  std::string prefix_;  // with its "/"
};

}  // namespace lockstep
