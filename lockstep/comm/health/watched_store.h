// A WatchedStore is a store whose waits end as soon as a JoinWatch knows of a rank that has died or given up. Ranks
// that still connect use it. Store, JoinWatch -> Store. Thread-safe as the other store is.
#pragma once

#include <memory>

#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> store, std::shared_ptr<JoinWatch> watch)
      : store_(std::move(store)), watch_(std::move(watch)) {}

  void set(std::string_view key, ByteView value, Deadline deadline) override { store_->set(key, value, deadline); }
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override {
    return store_->add(key, delta, deadline);
  }
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override {
    return store_->compare_set(key, expected, desired, deadline);
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override { return store_->check(keys, deadline); }
  bool remove(std::string_view key, Deadline deadline) override { return store_->remove(key, deadline); }
  void last_will(std::string_view key, ByteView value, Deadline deadline) override {
    store_->last_will(key, value, deadline);
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<JoinWatch> watch_;
};

}  // namespace lockstep::internal
