// A TorchWork presents a lockstep::Work as a c10d::Work: waited for, polled, or followed through a Future. Backend ->
// TorchWork -> Python. Thread-safe. wait() blocks; failures reach Python as DistBackendError (ValueError for
// arguments).
//
// A Completer completes Futures while nobody waits.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/comm/group/work_control.h"

namespace lockstep::python {

using namespace internal;

// Beyond a hundred years nanoseconds run out.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

// An operation under way. It may have several parts, and fails with the first of them that does.
struct Started {
  Work work = WorkControl::start();
  std::function<int()> source = {};  // of a message from any rank
  std::vector<Work> before = {};     // the parts that go in front of `work`

  void wait(Deadline deadline = Deadline::never()) const;
  bool is_completed() const;
  std::exception_ptr exception() const;
};

class Completer;

class TorchWork final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `start` runs within the constructor, so that the profiler's event covers it.
  TorchWork(int rank, c10d::OpType type, const char* title, const std::optional<Tensors>& inputs, Tensors outputs,
            const std::shared_ptr<Completer>& completer, const std::function<Started()>& start);

  bool isCompleted() override;
  int sourceRank() const override;
  Tensors result() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Blocks until the operation has ended and the Future's listeners are told. Never throws.
  void settle();
  // The same, in the Completer's thread.
  void settle_in_background();

 private:
  void tell(c10::ivalue::Future& future);

  const Tensors outputs_;
  const std::weak_ptr<Completer> completer_;
  Started started_;
  std::mutex settling_;
  // State below is protected by settling_.
  bool settled_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Settles works in the order in which they were added, one after the other. A listener that adds a work may go on to
// wait for that work's Future (PyTorch's PowerSGD hook does): from then on another thread settles. So there are as many
// threads as listeners that wait within listeners, and one more. Its destructor waits for the listeners that run.
class Completer {
 public:
  Completer();
  ~Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;
  void add(c10::intrusive_ptr<TorchWork> work);

 private:
  struct State;
  void start_thread();  // REQUIRES: the state's mutex

  const std::shared_ptr<State> state_;
  std::vector<std::jthread> threads_;  // protected by the state's mutex; the first is made with the first work
};

// The exception that Python sees instead of an Error.
std::exception_ptr as_torch_error(const std::exception_ptr& error);
// Runs `call`; rethrows its exceptions as torch's kind of error.
template <class Call>
auto with_torch_errors(Call&& call) {
  try {
    return call();
  } catch (...) {
    std::rethrow_exception(as_torch_error(std::current_exception()));
  }
}

}  // namespace lockstep::python
