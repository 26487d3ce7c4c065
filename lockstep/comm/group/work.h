// A Work is a collective or a message that was started and will finish: a copyable handle. Thread-safe.
// A default-constructed one refers to no operation: to ask it anything is Error{invalid_argument}.
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

  // Blocks until it has finished, and throws what it failed with, every time it is called.
  // Error{timeout} at the deadline; the collective goes on.
  void wait(Deadline deadline = Deadline::never()) const;
  // Without blocking: finished, well or badly.
  bool is_completed() const;
  // What it failed with; null while it runs and where it went well.
  std::exception_ptr exception() const;
  // Of a received message: the rank that sent it. -1 for everything else, and before it is finished.
  int source() const;

  // For whoever runs it: a new, unfinished one.
  static Work start();
  void complete(std::exception_ptr error, int source = -1) const;
  // Makes it unfinished again, unless another handle to it is left; whether it did.
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
