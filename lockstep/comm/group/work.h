// A Work is a collective or a message that was started and will finish: a copyable handle. Thread-safe.
// A default-constructed one refers to no operation: using it is Error{invalid_argument}.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/base/deadline.h"

namespace lockstep {

class Work {
 public:
  Work() = default;

  // Blocks until it has finished, and throws its error, on every call. Error{timeout} at the deadline; the operation
  // continues.
  void wait(Deadline deadline = Deadline::never()) const;
  // Without blocking: finished, successfully or not.
  bool is_completed() const;
  // Its error; null while it runs and if it succeeded.
  std::exception_ptr exception() const;
  // Of a received message: the rank that sent it. -1 for everything else, and before it is finished.
  int source() const;

  // For code that runs operations: a new, unfinished one.
  static Work start();
  void complete(std::exception_ptr error, int source = -1) const;
  // Makes it unfinished again, unless another handle to it exists; returns whether it did.
  bool renew() const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    // State below is protected by mutex.
    bool done = false;
    std::exception_ptr error;
    int source = -1;
  };
  State& state() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
