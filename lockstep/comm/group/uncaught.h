// An UncaughtWatch tells a group's other ranks why this process ends, if an exception that nobody catches ends it:
// then nothing unwinds, so no destructor could. It adds itself to the process's terminate handler, which goes on to the
// one that was there before, also if that one calls it again, and is given back when the last watch ends. Thread-safe.
#pragma once

#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

class UncaughtWatch {
 public:
  explicit UncaughtWatch(ProcessGroup group);
  ~UncaughtWatch();
  // Whether this is the process that made it.
  bool is_here() const { return fork_guard_.is_here(); }
  UncaughtWatch(const UncaughtWatch&) = delete;
  UncaughtWatch& operator=(const UncaughtWatch&) = delete;

 private:
  friend void abort_watched_groups() noexcept;
  const ForkGuard fork_guard_;  // an exception in a forked child does not concern the group
  const ProcessGroup group_;
};

}  // namespace lockstep::internal
