// Finds and kills the processes of a job that left their rank's process group: a new session, a shell's job,
// timeout(1). All is async-signal-safe and never throws.
#pragma once

#include <sys/types.h>

namespace lockstep::internal {

enum class Reach {
  process,
  group,  // its process group, which leaves no moment in which another process of it can fork
};

// Sends SIGKILL to a process and its group, as far as it reaches; never to `spared_group` or the caller's.
void kill_found(int pid, int pidfd, Reach reach, pid_t spared_group) noexcept;

// Another way in which processes are found.
class OtherSearch {
 public:
  struct Found {
    int killed = 0;
    bool look_again = false;  // at undecided processes
  };
  virtual ~OtherSearch() = default;
  virtual Found kill_once(Reach reach) noexcept = 0;
};

// Sends SIGKILL to every process but the caller whose initial environment holds LOCKSTEP_JOB_ID=<job_id>, and to those
// that `other` finds, and repeats until two passes find none, for about a second at most; from the second pass on to
// their process groups. Processes of a job inside a rank carry the outer job's id in LOCKSTEP_OUTER_JOBS; a process
// that should outlive its job is started with both variables removed. Sees only processes that the caller may inspect.
// `other` is borrowed, and may be null. Returns how many the first pass found.
int kill_job_processes(const char* job_id, pid_t spared_group, OtherSearch* other = nullptr) noexcept;

}  // namespace lockstep::internal
