// A trace of all ranks of a job in the Trace Event Format, for Perfetto and chrome://tracing. snapshots -> JSON. Pure.
//
// A rank is a process of the trace. Its rows: the steps of each model with their phases, collectives, messages.
// Collectives that were under way at the same time have a row each. An arrow goes from the rank that came last to a
// collective to all others, which waited for it. Names of fields are those of torch.profiler's traces where there are
// such.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/observe/flight_file.h"

namespace lockstep::internal {

// last_steps: of each rank's recorded steps, and what lies within their time; 0: everything that is recorded.
std::string chrome_trace(const std::vector<FlightSnapshot>& snapshots, std::size_t last_steps = 0);

}  // namespace lockstep::internal
