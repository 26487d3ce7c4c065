// A ForkGuard remembers the process in which an object was made, so that a child that was forked later learns at once
// that it cannot use it: neither threads nor locks nor streams survive a fork(). Asking costs two loads. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace lockstep {

class ForkGuard {
 public:
  ForkGuard();

  bool is_here() const { return forks_ == forks_so_far.load(std::memory_order_relaxed); }
  // Error{invalid_argument} in a forked child; `what` begins its text: "a group".
  void check(std::string_view what) const {
    if (!is_here()) throw_elsewhere(what);
  }

 private:
  [[noreturn]] void throw_elsewhere(std::string_view what) const;

  static std::atomic<std::uint32_t> forks_so_far;  // on the way from the first process to this one

  std::uint32_t forks_;
  pid_t process_;
};

}  // namespace lockstep
