// A TorchStore presents PyTorch's rendezvous store as a lockstep::Store, so that ranks join through the one they have.
// c10d::Store -> TorchStore -> join(). Thread-safe as the other store is. Error{internal} quotes the other's failures.
// Torch's stores have no deadlines (a TCPStore whose server is stopped never answers), so each call runs in a separate
// thread. One that exceeds its deadline is Error{timeout}, and its thread remains until the store answers, or the
// process ends; the operation may still take effect then.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/store/store.h"

namespace lockstep::python {

using namespace internal;

class TorchStore final : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  // All keys count as missing if the other store does not answer.
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;

 private:
  template <class Call>
  auto call(const char* verb, std::string_view key, Deadline deadline, Call call);

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::python
