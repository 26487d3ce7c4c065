// For code that runs operations: makes the Work that a caller waits for, and finishes it. Thread-safe.
#pragma once

#include <exception>
#include <functional>

#include "lockstep/comm/group/work.h"

namespace lockstep::internal {

struct WorkControl {
  using Join = std::function<void()>;

  static Work start();  // a new, unfinished one
  // join: called in each thread that waits, if there is no error; so that streams can wait for the rest.
  static void complete(const Work& work, std::exception_ptr error, int source = -1, Join join = nullptr);
  // Makes it unfinished again, unless another handle to it exists; returns whether it did.
  static bool renew(const Work& work);
};

}  // namespace lockstep::internal
