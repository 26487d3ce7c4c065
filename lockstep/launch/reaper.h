// Guard is a tiny helper process that outlives its launcher by a moment: when the launcher dies without having stopped
// its ranks (SIGKILL, a crash), it kills their process groups and whatever else carries the job's id.
// Start it before the first rank; not thread-safe.
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

class Guard {
 public:
  // Throws Error{internal} if no process can be made.
  explicit Guard(const std::string& job_id);
  ~Guard();  // ends the helper; the ranks are then on their own
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // A rank's pid written here (as a pid_t) puts its group under guard: done by the rank itself before it executes.
  int fd() const { return writer_.get(); }
  // The rank has been reaped: its number may belong to somebody else from now on.
  void forget(int pid) noexcept;

 private:
  int pid_ = -1;
  UniqueFd writer_;
};

}  // namespace lockstep
