// How long calls take, in seconds.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/base/clock.h"

namespace lockstep::testing {

template <typename Call>
double seconds_of(Call call) {
  const TimePoint start = steady_clock().now();
  call();
  return seconds(steady_clock().now() - start);
}

// Of calls that are promised to end within a time. One of them may be held up by whatever else the machine does, most
// are not.
inline double median_of(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace lockstep::testing
