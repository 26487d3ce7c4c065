// Kills the processes of a job that left their rank's process group (a new session, a shell's job, timeout(1)). They
// are found by the job's id in their initial environment; processes of a job inside a rank carry the outer job's id in
// LOCKSTEP_OUTER_JOBS. A process that should outlive its job is started with both variables removed.
#pragma once

namespace lockstep {

// Sends SIGKILL to every process but the caller whose initial environment holds LOCKSTEP_JOB_ID=<job_id>, and repeats
// until none is left, for about a second at most. Sees only processes that the caller may inspect. Async-signal-safe,
// never throws. Returns how many the first pass found.
int kill_job_processes(const char* job_id) noexcept;

}  // namespace lockstep
