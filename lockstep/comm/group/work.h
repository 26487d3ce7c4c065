// A Work is a collective or a message that was started and will finish: a copyable handle. Thread-safe.
// A default-constructed one refers to no operation: using it is Error{invalid_argument}.
#pragma once

#include <exception>
#include <memory>

#include "lockstep/base/deadline.h"

namespace lockstep {

namespace internal {
struct WorkControl;
}

class Work {
 public:
  Work() = default;

  // Blocks until it has finished, and throws its error, on every call. Error{timeout} at the deadline; the operation
  // continues. Of tensors on a GPU, and without a deadline, only the calling thread's current stream waits, as in
  // PyTorch; an error that comes later is thrown by the group's next calls. With a deadline the thread waits, too.
  void wait(Deadline deadline = Deadline::never()) const;
  void wait(Duration timeout) const { wait(Deadline::after(timeout)); }
  // Without blocking: finished, successfully or not. On a GPU, too.
  bool is_completed() const;
  // Its error; null while it runs and if it succeeded.
  std::exception_ptr exception() const;
  // Of a received message: the rank that sent it. -1 for everything else, and before it is finished.
  int source() const;

 private:
  friend internal::WorkControl;
  struct State;
  State& state() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
