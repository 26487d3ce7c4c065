// A Store through which a rank sees other addresses than were published, so that a proxy can stand between ranks.
// Everything else goes to the store behind it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/store/store.h"

namespace lockstep::testing {

using namespace internal;

class DetourStore final : public Store {
 public:
  using Detour = std::function<Bytes(std::string_view key, Bytes value)>;
  DetourStore(Store& store, Detour detour) : store_(store), detour_(std::move(detour)) {}

  void set(std::string_view key, ByteView value, Deadline deadline) override { store_.set(key, value, deadline); }
  Bytes get(std::string_view key, Deadline deadline) override { return detour_(key, store_.get(key, deadline)); }
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override {
    return store_.add(key, delta, deadline);
  }
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override {
    return store_.compare_set(key, expected, desired, deadline);
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override {
    return store_.wait(keys, deadline);
  }
  bool check(const std::vector<std::string>& keys, Deadline deadline) override { return store_.check(keys, deadline); }
  bool remove(std::string_view key, Deadline deadline) override { return store_.remove(key, deadline); }

 private:
  Store& store_;
  Detour detour_;
};

}  // namespace lockstep::testing
