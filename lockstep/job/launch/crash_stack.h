// The stack of the crash that ended a rank, for the report. It reads the program and its libraries, for up to 3 s: call
// it when the ranks have ended.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/launch/flight_recordings.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

// In lines; empty if no signal ended the rank, or it has not recorded where.
std::vector<std::string> crash_stack(const RankEnd& end, const FlightRecordings& recordings);

}  // namespace lockstep::internal
