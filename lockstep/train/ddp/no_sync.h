// While a NoSync exists, backward does not average gradients. DdpBase::no_sync() -> NoSync. Belongs to the wrapper's
// thread.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

class NoSync {
 public:
  explicit NoSync(std::shared_ptr<int> guards) : guards_(std::move(guards)) { ++*guards_; }
  ~NoSync() { --*guards_; }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<int> guards_;  // how many exist; the wrapper may be destroyed first
};

}  // namespace lockstep
