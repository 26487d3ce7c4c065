// The machine's monotonic clock, read from the processor's own counter where that is what the kernel reads, for places
// that look at the time with every operation: a third of the price, and within a few microseconds of steady_clock().
// Never goes back within a thread. Thread-safe.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep {

const Clock& tsc_clock();

// The time of the system's next tick, a few milliseconds ahead at most, for deadlines: it costs a load.
const Clock& coarse_clock();

}  // namespace lockstep
