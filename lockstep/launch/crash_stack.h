// Adds to the outcome of an attempt the stack of the crash that ended it, for the report. Reads the program and its
// libraries, for up to 3 s: call it when the ranks have ended.
#pragma once

#include "lockstep/launch/flight_recordings.h"
#include "lockstep/launch/outcome.h"

namespace lockstep::internal {

// Of the first failure, if a signal ended that rank and it recorded where.
void add_crash_stack(Outcome& outcome, const FlightRecordings& recordings);

}  // namespace lockstep::internal
