// An EndNote is memory of a launcher in which it notes how its job has ended, for `lockstep stop`, which is no parent
// of it. Only processes of the same user can open it, and only those that did before the launcher ended can read it.
// Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class EndNote {
 public:
  // Without memory for it nothing is noted.
  EndNote();
  void write(int exit_code, const std::string& text) const;

 private:
  UniqueFd fd_;
};

// The launcher's, to be read when that has ended; nothing if the process is no launcher of a job on one host.
std::optional<UniqueFd> open_end_note(int pid);
// "exit code 0", "exit code 3: rank 1 (pid 811) exited with code 3"; empty if nothing was noted.
std::string read_end_note(const UniqueFd& note);

}  // namespace lockstep::internal
