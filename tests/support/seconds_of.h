// How long a call takes, in seconds.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep::testing {

template <typename Call>
double seconds_of(Call call) {
  const TimePoint start = steady_clock().now();
  call();
  return seconds(steady_clock().now() - start);
}

}  // namespace lockstep::testing
