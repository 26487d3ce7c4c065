// A ProcessWatch knows whether another process of this machine has ended, whatever has become of its pid since.
// pid, start -> ProcessWatch. Through a pidfd, or where the kernel gives none (old ones, gVisor, some containers), by
// what /proc says each time. Movable; thread-safe to ask.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

enum class ProcessState : std::uint8_t { unknown, alive, stopped, traced, uninterruptible, ended };
// "alive", "stopped (by SIGSTOP or the like)"; empty if it is not known.
std::string_view to_string(ProcessState state);
inline bool is_stopped(ProcessState state) { return state == ProcessState::stopped || state == ProcessState::traced; }

// What /proc/<pid>/stat tells. Reads one small file.
struct ProcessStat {
  ProcessState state = ProcessState::unknown;
  std::uint64_t start = 0;  // when it began, in ticks since the machine did; 0 if it is not known
  bool is_missing = false;  // there is no such process
};
ProcessStat process_stat(int pid);

class ProcessWatch {
 public:
  // Of nobody: never ends.
  ProcessWatch() = default;
  // `start` is what process_stat() says of it: a process with the same pid and another start is not the one, so that
  // one has ended. 0 if it is not known.
  explicit ProcessWatch(int pid, std::uint64_t start = 0);

  bool has_ended() const;
  // Reads one small file.
  ProcessState state() const { return pid_ <= 0 ? ProcessState::unknown : process_stat(pid_).state; }

  // Readable once it has ended; -1 if there is none.
  int fd() const { return pidfd_.get(); }

 private:
  int pid_ = 0;
  std::uint64_t start_ = 0;
  bool is_over_ = false;  // since it was made
  UniqueFd pidfd_;
};

}  // namespace lockstep::internal
