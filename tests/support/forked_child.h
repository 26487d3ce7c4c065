// Bodies run in forked children. Their exit codes: 0 if the body returned true, 1 if false, 2 if it threw, 128 + signal
// if one ended it, -1 if it did not end within 20 s. REQUIRES: no other thread of this process holds a lock that the
// body needs; the allocator of a sanitizer has some.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "lockstep/base/deadline.h"

namespace lockstep::testing {

// Returns in the parent alone.
inline pid_t start_child(const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 2;
  try {
    code = body() ? 0 : 1;
  } catch (...) {
  }
  ::_exit(code);
}

inline int exit_code_of(pid_t pid) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.expired()) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline int exit_code_of_child(const std::function<bool()>& body) { return exit_code_of(start_child(body)); }

}  // namespace lockstep::testing
