// For how long this process was stopped so far: by Ctrl-Z, by a batch system that suspends jobs, by a debugger. Ranks
// of a job that was stopped as a whole have kept nobody waiting meanwhile, so a Deadline does not count that time. The
// kernel keeps no record of it: a thread that wakes four times a second notices when it has not. Thread-safe.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep {

// From now on this process notices its stops. A forked child does not, until it says so itself.
void detect_suspension();
// All that were noticed. Never less than before.
Duration suspended_time();
// Notices one that has only just ended, too.
Duration suspended_time_now();

}  // namespace lockstep
