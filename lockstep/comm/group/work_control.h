// For code that runs operations: makes the Work that a caller waits for, and finishes it. Thread-safe.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>

#include "lockstep/comm/group/work.h"

namespace lockstep::internal {

struct WorkControl {
  using Join = std::function<void()>;

  // An operation on a device, for which a caller's streams wait in place of the caller. Thread-safe.
  struct OnDevice {
    virtual ~OnDevice() = default;
    // The current streams of the calling thread wait for it; the thread does not.
    virtual void join() = 0;
    virtual bool is_done() = 0;
  };

  // A new, unfinished one. told: set once a caller has been thrown its error.
  static Work start(std::shared_ptr<std::atomic<bool>> told = nullptr);
  // It is a device's operation, of which it lets go once it is complete().
  static void attach(const Work& work, std::shared_ptr<OnDevice> device);
  // join: called in each thread that waits, if there is no error; so that streams can wait for the rest.
  static void complete(const Work& work, std::exception_ptr error, int source = -1, Join join = nullptr);
  // Makes it unfinished again, unless another handle to it exists; returns whether it did.
  static bool renew(const Work& work);
};

}  // namespace lockstep::internal
