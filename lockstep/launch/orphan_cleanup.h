// Ends the processes of a job that left their rank's process group (a new session, a shell's job, timeout(1)): they are
// found by the job's id in the environment they were started with; those of a job inside a rank carry the outer job's
// id in LOCKSTEP_OUTER_JOBS. A process that is to outlive its job is started with both variables removed.
#pragma once

namespace lockstep {

// Sends SIGKILL to every process but the caller whose initial environment holds LOCKSTEP_JOB_ID=<job_id>, again until
// it finds none, at most for about a second. Only sees processes that the caller may inspect. Async-signal-safe, never
// throws. Returns how many it found at first.
int kill_job_processes(const char* job_id) noexcept;

}  // namespace lockstep
