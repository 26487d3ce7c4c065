// One clock for the flight recordings of a job, whose ranks may have run on several hosts. snapshots -> offsets. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/observe/flight_file.h"

namespace lockstep::internal {

// What to add to the times of each snapshot: nanoseconds. The result is the wall clock of the first snapshot's host.
//
// Ranks of one host have one monotonic clock, so their times are exact among each other. Between hosts the wall clocks
// decide, corrected by causality: no rank leaves a barrier, an all-reduce or the like before all have entered it.
std::vector<std::int64_t> common_clock(const std::vector<FlightSnapshot>& snapshots);

// Times and offsets of damaged recordings, so that they can be added and subtracted: 36 years of a machine that runs.
inline constexpr std::int64_t kLatestMonotonic = std::int64_t{1} << 60;
inline constexpr std::int64_t kLargestOffset = std::int64_t{1} << 61;

}  // namespace lockstep::internal
