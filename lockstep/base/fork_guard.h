// A ForkGuard remembers the process that made an object. A child that is forked later gets an error when it uses the
// object, because threads, locks and streams do not survive fork(). The check costs two loads. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace lockstep::internal {

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

  static std::atomic<std::uint32_t> forks_so_far;  // from the first process to this one

  std::uint32_t forks_;
  pid_t process_;
};

}  // namespace lockstep::internal
