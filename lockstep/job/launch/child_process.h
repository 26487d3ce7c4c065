// ChildProcess is one started rank: a process in a group of its own that dies with the thread that started it.
// Not thread-safe: start, signal and reap from one thread. That thread must live as long as the child should, since the
// kernel kills the child (SIGKILL, PR_SET_PDEATHSIG) when the starting thread ends.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

struct Command {
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "KEY=value", complete
  std::vector<int> keep_fds;             // inherited under the same number; others stay close-on-exec
  int stdin_fd = -1;                     // borrowed; -1: the parent's
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<unsigned long> cpu_mask{};  // for sched_setaffinity(); empty: the parent's
  int cgroup_fd = -1;                     // of cgroup.procs, borrowed; -1: the parent's cgroup
  int memory_node = -1;                   // from which memory comes first; -1: as for the parent
};

// Opens /dev/null in place of standard descriptors that are closed, before another file gets one of their numbers.
void occupy_standard_descriptors();

class ChildProcess {
 public:
  // Returns once the program runs. Throws ExecFailed with path and errno if it cannot be executed, Error{internal} if
  // no process can be made. The child's signal mask is `mask`; before it executes, it writes its pid to `reaper_fd`
  // (-1: nowhere).
  static ChildProcess start(const Command& command, const sigset_t& mask, int reaper_fd = -1);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills the group and reaps, unless try_reap() has succeeded

  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended

  // To the whole group: the child and what it started.
  void signal_group(int signal) const noexcept;
  void signal_alone(int signal) const noexcept;
  // How the child has ended, if it has by now. Never blocks; errors as try_reap().
  std::optional<ExitStatus> peek() const;
  // Never blocks. Once the child has ended: kills the rest of its group, frees its pid, and returns its status. Throws
  // Error{internal} if other code has reaped it.
  std::optional<ExitStatus> try_reap();

 private:
  ChildProcess(int pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  int pid_;
  UniqueFd pidfd_;
  bool reaped_ = false;
};

}  // namespace lockstep::internal
