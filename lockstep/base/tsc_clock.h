// The machine's monotonic clock, read from the processor's time stamp counter if the kernel uses that counter too. For
// code that reads the time with every operation: it costs a third of steady_clock(), and agrees with it within a few
// microseconds. Never goes back within a thread. Thread-safe.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep::internal {

const Clock& tsc_clock();

// The time of the system's next tick, at most a few milliseconds ahead. For deadlines: it costs a load.
const Clock& coarse_clock();

}  // namespace lockstep::internal
