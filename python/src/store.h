// A TorchStore is PyTorch's rendezvous store seen as a lockstep::Store, so that ranks meet through the one they have.
// c10d::Store -> TorchStore -> join(). Thread-safe as the other store is. Blocks at most until the deadline, except
// where the other store gives its operations no timeout. Throws Error{timeout}; Error{internal} quotes other failures.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/store/store.h"

namespace lockstep::python {

class TorchStore final : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::python
