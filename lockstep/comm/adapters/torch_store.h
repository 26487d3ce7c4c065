// A TorchStoreView is a lockstep::Store seen as libtorch's, so that libtorch's process groups meet through the job's
// store. lockstep::Store -> TorchStoreView -> c10d. Thread-safe as the other store is. Blocks at most for the timeout
// that its caller sets. Throws what the other store throws.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

class TorchStoreView final : public c10d::Store {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Value = std::vector<std::uint8_t>;

  TorchStoreView(std::shared_ptr<lockstep::Store> store, Milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const Value& value) override;
  Value compareSet(const std::string& key, const Value& expected, const Value& desired) override;
  Value get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override;

 private:
  Deadline deadline() const { return Deadline::after(timeout_); }

  const std::shared_ptr<lockstep::Store> store_;
};

}  // namespace lockstep::internal
