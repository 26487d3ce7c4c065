// For how long this process was suspended so far: by Ctrl-Z, by a batch system, by a debugger. A Deadline does not
// count that time, because the ranks of a job are usually suspended together. The kernel does not record it, so a
// thread wakes four times a second and notices when it has not. Thread-safe.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep::internal {

// Starts to watch this process. A forked child is not watched until it calls this itself.
void detect_suspension();
// The sum so far. Never decreases.
Duration suspended_time();
// Includes a suspension that has only just ended.
Duration suspended_time_now();

}  // namespace lockstep::internal
