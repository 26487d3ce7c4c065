// A Reaper is a small helper process that outlives its launcher by a moment: if the launcher dies without stopping its
// ranks (SIGKILL, a crash), it kills their process groups and all other processes that carry the job's id. Made before
// the first rank; not thread-safe.
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class Reaper {
 public:
  // Throws Error{internal} if no process can be made.
  explicit Reaper(const std::string& job_id);
  ~Reaper();  // ends the helper; the ranks are not killed
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // A rank writes its pid here (as a pid_t) before it executes, which registers its process group.
  int fd() const { return writer_.get(); }
  // The rank has been reaped: its pid may be reused from now on.
  void forget(int pid) noexcept;

 private:
  int pid_ = -1;
  UniqueFd writer_;
};

// Kills the processes of a job that left their rank's process group (a new session, a shell's job, timeout(1)): sends
// SIGKILL to every process but the caller whose initial environment holds LOCKSTEP_JOB_ID=<job_id>, and repeats until
// none is left, for about a second at most. Processes of a job inside a rank carry the outer job's id in
// LOCKSTEP_OUTER_JOBS; a process that should outlive its job is started with both variables removed. Sees only
// processes that the caller may inspect. Async-signal-safe, never throws. Returns how many the first pass found.
int kill_job_processes(const char* job_id) noexcept;

}  // namespace lockstep::internal
